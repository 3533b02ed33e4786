"""What the boundary asks of policy, and what it is told. Imports no framework."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID

AnswerName = Literal["allow", "deny", "require"]
EffectName = Literal["read", "write"]
EffectPattern = Literal["", "read", "write", "opaque"]  # opaque: a write with neither key nor probe
ExpiryName = Literal["reject", "cancel_run", "escalate"]
Verdict = Literal["approve", "reject"]
DEFAULT_POLICY = "kernel default"


@dataclass(frozen=True)
class Call:
    """A proposed call, as far as policy may look at it. `arguments` are canonical JSON, parsed only if a rule asks."""

    project: str
    agent: str
    tool: str
    effect: EffectName
    has_key: bool
    has_probe: bool
    arguments: bytes = b"{}"

    @property
    def opaque(self) -> bool:
        """A write that the other side could neither recognise when repeated nor be asked about."""
        return self.effect == "write" and not self.has_key and not self.has_probe


@dataclass(frozen=True)
class PolicyResult:
    """What policy said, and which rule said it (`policy` names rule and version)."""

    answer: AnswerName
    policy: str = DEFAULT_POLICY
    policy_id: UUID | None = None
    policy_version: int | None = None
    group: str = ""
    quorum: int = 1
    deadline_seconds: int = 24 * 3600
    on_expiry: ExpiryName = "reject"
    escalate_to: str = ""
    four_eyes: bool = False
    break_glass: bool = False


@dataclass(frozen=True)
class Request:
    """Everything that a person is asked to decide on. `binding` is the canonical JSON that the yes will cover.

    `idempotent_for_seconds`, `probes` and `twin` are what the tool's declaration and the project's past say of it.
    """

    project: str
    run_id: UUID
    operation_id: UUID
    agent: str
    tool: str
    effect: str
    binding: str
    arguments_hash: str
    requested_by: str
    policy: PolicyResult
    idempotent_for_seconds: int | None = None
    probes: bool = False
    twin: bool = False


@dataclass(frozen=True)
class Grant:
    """A person's yes: the request that it answers, the text that it covers, and the rule that asked for it."""

    approval_id: UUID
    binding: str
    policy_id: UUID | None


@dataclass(frozen=True)
class Decider:
    """Who decides, as the session or the key says; never as the request's body says.

    `names` are all identities of that person (a key acts for its user): four-eyes holds against each of them.
    `may_break_glass`: trusted to approve alone where a policy provides for emergencies.
    """

    name: str
    groups: frozenset[str]
    via: Literal["admin", "api", "command"]
    names: frozenset[str] = frozenset()
    may_break_glass: bool = False


@dataclass(frozen=True)
class Rule:
    """One version of a policy as somebody wants it. `arguments` are conditions as in `predicates`."""

    name: str
    answer: AnswerName
    agent: str = "*"
    tool: str = "*"
    effect: EffectPattern = ""
    arguments: tuple[Mapping[str, Any], ...] = ()
    group: str = ""
    quorum: int = 1
    deadline_seconds: int = 24 * 3600
    on_expiry: ExpiryName = "reject"
    escalate_to: str = ""
    four_eyes: bool = False
    break_glass: bool = False

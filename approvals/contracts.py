"""What the boundary asks of policy, and what it is told. Imports no framework."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal
from uuid import UUID

AnswerName = Literal["allow", "deny", "require"]
Verdict = Literal["approve", "reject"]
DEFAULT_POLICY = "kernel default"


@dataclass(frozen=True)
class Call:
    """A proposed call, as far as policy may look at it."""

    project: str
    agent: str
    tool: str
    effect: Literal["read", "write"]
    has_key: bool
    has_probe: bool


@dataclass(frozen=True)
class PolicyResult:
    """What policy said, and which rule said it (`policy` names rule and version)."""

    answer: AnswerName
    policy: str = DEFAULT_POLICY
    policy_id: UUID | None = None
    group: str = ""
    deadline_seconds: int = 24 * 3600
    on_expiry: Literal["reject", "cancel_run"] = "reject"
    four_eyes: bool = False


@dataclass(frozen=True)
class Request:
    """Everything that a person is asked to decide on. `binding` is the canonical JSON that the yes will cover."""

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


@dataclass(frozen=True)
class Grant:
    """A person's yes: the text that it covers, and the rule under which it was asked for."""

    binding: str
    policy_id: UUID | None


@dataclass(frozen=True)
class Decider:
    """Who decides, as the session or the key says; never as the request's body says.

    `names` are all identities of that person (a key acts for its user): four-eyes holds against each of them.
    """

    name: str
    groups: frozenset[str]
    via: Literal["admin", "api", "command"]
    names: frozenset[str] = frozenset()
    superuser: bool = False


@dataclass(frozen=True)
class Rule:
    """One version of a policy as somebody wants it."""

    name: str
    answer: AnswerName
    agent: str = "*"
    tool: str = "*"
    effect: Literal["", "read", "write"] = ""
    group: str = ""
    deadline_seconds: int = 24 * 3600
    on_expiry: Literal["reject", "cancel_run"] = "reject"
    four_eyes: bool = False

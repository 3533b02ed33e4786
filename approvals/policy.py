"""Which rule applies to a call, and how rules come to be: a change is a new version. Decides nothing about people."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from uuid import UUID

from django.db import connection, transaction
from django.db.models.functions import Now

from approvals import predicates
from approvals.contracts import Call, PolicyResult, Rule
from approvals.models import DEADLINE_DAYS_MAX, QUORUM_MAX, Policy
from approvals.predicates import Condition
from kernel_project.primitives.canonical import canonical_json, parse_json
from kernel_project.primitives.errors import Invalid
from kernel_project.primitives.sql import rows

HERE = Path(__file__).parent
POLICIES_MAX = 1_000  # rules in force per project
CAREFUL = ("deny", "require", "allow")
EFFECTS = ("", "read", "write", "opaque")  # wider before narrower; a read and a write never match the same call


@dataclass(frozen=True)
class _Match:
    """A rule that matches, with what makes it narrower or wider than another one."""

    rule: Policy
    conditions: tuple[Condition, ...]

    @property
    def pinned(self) -> tuple[tuple[int, int], ...]:
        """Tool, agent, effect: exactly named or not, and how much is named."""
        return _pinned(self.rule.tool), _pinned(self.rule.agent), (EFFECTS.index(self.rule.effect), 0)

    def within(self, other: _Match) -> bool:
        """At least as narrow in each way."""
        named = all(mine >= theirs for mine, theirs in zip(self.pinned, other.pinned, strict=True))
        return named and predicates.imply(self.conditions, other.conditions)


def decide(call: Call) -> PolicyResult:
    """The answer of the narrowest matching rule; of equally narrow ones, of the latest.

    Where two rules are narrow in different ways (one names the tool, the other the agent), the more careful answer
    holds. With more rules than can be looked at, everything is denied.
    """
    return among(in_force(call.project), call)


def among(rules: Sequence[Policy], call: Call) -> PolicyResult:
    """The same, if these were the rules, the latest first."""
    if len(rules) > POLICIES_MAX:
        return PolicyResult(answer="deny", policy=f"kernel: more than {POLICIES_MAX} rules")
    matching: list[_Match] = []
    arguments: Any = None
    for rule in rules:
        if not _named(rule, call):
            continue
        if rule.arguments and arguments is None:
            arguments = parse_json(call.arguments)
        try:
            conditions = predicates.parsed(canonical_json(rule.arguments)) if rule.arguments else ()
        except Invalid:  # nobody wrote this through `save`; what it was meant to forbid is not known
            return PolicyResult(
                answer="deny", policy=f"{rule}, whose conditions cannot be read",
                policy_id=rule.id, policy_version=rule.version,
            )  # fmt: skip
        if predicates.hold(conditions, arguments, careful=rule.answer != "allow"):
            matching.append(_Match(rule, conditions))
    if not matching:
        return _default(call)
    return _result(min(_narrowest(matching), key=lambda rule: CAREFUL.index(rule.answer)))


def in_force(project: str) -> list[Policy]:
    """The rules, the latest first; one more than POLICIES_MAX at most. For reading, never for saving."""
    asked = {"project": project, "limit": POLICIES_MAX + 1}
    found = [json.loads(text) for (text,) in rows(HERE, "rules_in_force", asked)]
    return [Policy(**facts | {"id": UUID(facts["id"])}) for facts in found]


def _named(rule: Policy, call: Call) -> bool:
    """Whether agent, tool and effect fit; the arguments are asked last."""
    effect = rule.effect in ("", call.effect) or (rule.effect == "opaque" and call.opaque)
    return effect and _fits(rule.agent, call.agent) and _fits(rule.tool, call.tool)


def _fits(pattern: str, name: str) -> bool:
    return pattern == name or fnmatchcase(name, pattern)


def _narrowest(matches: list[_Match]) -> list[Policy]:
    """Those that no other rule is narrower than; of several that pin down the same, only the first, the latest."""
    latest: dict[Any, _Match] = {}
    for match in matches:
        latest.setdefault((match.pinned, frozenset(match.conditions)), match)
    left = list(latest.values())
    return [mine.rule for mine in left if not any(other.within(mine) and not mine.within(other) for other in left)]


def _pinned(pattern: str) -> tuple[int, int]:
    """How much a pattern pins down: exact names before patterns, long patterns before short ones."""
    return int(not set(pattern) & set("*?[")), sum(letter not in "*?" for letter in pattern)


def _default(call: Call) -> PolicyResult:
    return PolicyResult(answer="require" if call.opaque else "allow")


def _result(rule: Policy) -> PolicyResult:
    return PolicyResult(
        answer=rule.answer,  # type: ignore[arg-type]
        policy=str(rule),
        policy_id=rule.id,
        policy_version=rule.version,
        group=rule.group,
        quorum=rule.quorum,
        deadline_seconds=rule.deadline_seconds,
        on_expiry=rule.on_expiry,  # type: ignore[arg-type]
        escalate_to=rule.escalate_to,
        four_eyes=rule.four_eyes,
        break_glass=rule.break_glass,
    )


def draft(project: str, rule: Rule) -> Policy:
    """The rule as a row that is not saved, to be tried. Raises Invalid for one that could not be put in force."""
    return Policy(project=project, version=0, created_by="draft", **_checked(rule))


def _checked(rule: Rule) -> dict[str, Any]:
    """The columns of a rule that makes sense."""
    wanted = asdict(rule) | {"arguments": predicates.canonical(rule.arguments)}
    if not 1 <= rule.quorum <= QUORUM_MAX:
        raise Invalid(f"the quorum is a number from 1 to {QUORUM_MAX}")
    if not 1 <= rule.deadline_seconds <= DEADLINE_DAYS_MAX * 24 * 3600:
        raise Invalid(f"the deadline is from 1 second to {DEADLINE_DAYS_MAX} days")
    if (rule.on_expiry == "escalate") != bool(rule.escalate_to):
        raise Invalid("`escalate` names the group that is asked next in escalate_to, and nothing else names one")
    if rule.on_expiry == "escalate" and rule.escalate_to == rule.group:
        raise Invalid("a request is escalated to another group than the one that it asked first")
    if rule.answer == "deny" and rule.break_glass:
        raise Invalid("a rule that denies asks nobody, so there is no glass to break")
    return wanted


@transaction.atomic
def save(project: str, rule: Rule, by: str) -> tuple[Policy, bool]:
    """Put a rule in force: the version that is there if it says the same, else a new one that retires the old."""
    wanted = _checked(rule)
    with connection.cursor() as cursor:  # of a name that is new there is no row to lock
        cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [f"policy {project} {rule.name}"])
    others = Policy.objects.filter(project=project, retired_at__isnull=True).exclude(name=rule.name)
    if others.count() >= POLICIES_MAX:
        raise Invalid(f"a project may have {POLICIES_MAX} rules in force: retire some first")
    versions = Policy.objects.select_for_update().filter(project=project, name=rule.name).order_by("-version")
    last = versions.first()
    if last is not None and last.retired_at is None and all(getattr(last, k) == v for k, v in wanted.items()):
        return last, False
    Policy.objects.filter(project=project, name=rule.name, retired_at__isnull=True).update(retired_at=Now())
    number = last.version + 1 if last is not None else 1
    return Policy.objects.create(project=project, version=number, created_by=by, **wanted), True

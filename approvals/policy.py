"""Which rule applies to a call, and how rules come to be: a change is a new version. Decides nothing about people."""

from __future__ import annotations

import json
from dataclasses import asdict
from fnmatch import fnmatchcase
from pathlib import Path
from uuid import UUID

from django.db import connection, transaction
from django.db.models.functions import Now

from approvals.contracts import Call, PolicyResult, Rule
from approvals.models import Policy
from kernel_project.primitives.errors import Invalid
from kernel_project.primitives.sql import load

HERE = Path(__file__).parent
POLICIES_MAX = 1_000  # rules in force per project
CAREFUL = ("deny", "require", "allow")
Narrowness = tuple[tuple[int, int], ...]  # tool, agent, effect: exactly named or not, and how many letters


def decide(call: Call) -> PolicyResult:
    """The answer of the narrowest matching rule; of equally narrow ones, of the latest.

    Where two rules are narrow in different ways (one names the tool, the other the agent), the more careful answer
    holds. With more rules than can be looked at, everything is denied.
    """
    rules = _in_force(call.project)
    if len(rules) > POLICIES_MAX:
        return PolicyResult(answer="deny", policy=f"kernel: more than {POLICIES_MAX} rules")
    matching = [rule for rule in rules if _matches(rule, call)]
    if not matching:
        return _default(call)
    return _result(min(_narrowest(matching), key=lambda rule: CAREFUL.index(rule.answer)))


def _in_force(project: str) -> list[Policy]:
    """The rules, the latest first; one more than POLICIES_MAX at most. For reading, never for saving."""
    with connection.cursor() as cursor:
        cursor.execute(load(HERE, "rules_in_force"), {"project": project, "limit": POLICIES_MAX + 1})
        found = [json.loads(text) for (text,) in cursor.fetchall()]
    return [Policy(**facts | {"id": UUID(facts["id"])}) for facts in found]


def _matches(rule: Policy, call: Call) -> bool:
    return _fits(rule.agent, call.agent) and _fits(rule.tool, call.tool) and rule.effect in ("", call.effect)


def _fits(pattern: str, name: str) -> bool:
    return pattern == name or fnmatchcase(name, pattern)


def _narrowest(rules: list[Policy]) -> list[Policy]:
    """Those that no other rule is narrower than; of several that pin down the same, only the first, the latest."""
    latest: dict[Narrowness, Policy] = {}
    for rule in rules:
        latest.setdefault(_narrowness(rule), rule)
    return [rule for mine, rule in latest.items() if not any(_narrower(other, mine) for other in latest)]


def _narrowness(rule: Policy) -> Narrowness:
    return _pinned(rule.tool), _pinned(rule.agent), (int(bool(rule.effect)), 0)


def _pinned(pattern: str) -> tuple[int, int]:
    """How much a pattern pins down: exact names before patterns, long patterns before short ones."""
    return int(not set(pattern) & set("*?[")), sum(letter not in "*?" for letter in pattern)


def _narrower(one: Narrowness, other: Narrowness) -> bool:
    """At least as narrow in each way, and narrower in one."""
    return one != other and all(mine >= theirs for mine, theirs in zip(one, other, strict=True))


def _default(call: Call) -> PolicyResult:
    unsafe = call.effect == "write" and not call.has_key and not call.has_probe
    return PolicyResult(answer="require" if unsafe else "allow")


def _result(rule: Policy) -> PolicyResult:
    return PolicyResult(
        answer=rule.answer,  # type: ignore[arg-type]
        policy=str(rule),
        policy_id=rule.id,
        group=rule.group,
        deadline_seconds=rule.deadline_seconds,
        on_expiry=rule.on_expiry,  # type: ignore[arg-type]
        four_eyes=rule.four_eyes,
    )


@transaction.atomic
def save(project: str, rule: Rule, by: str) -> tuple[Policy, bool]:
    """Put a rule in force: the version that is there if it says the same, else a new one that retires the old."""
    others = Policy.objects.filter(project=project, retired_at__isnull=True).exclude(name=rule.name)
    if others.count() >= POLICIES_MAX:
        raise Invalid(f"a project may have {POLICIES_MAX} rules in force: retire some first")
    versions = Policy.objects.select_for_update().filter(project=project, name=rule.name).order_by("-version")
    last = versions.first()
    wanted = asdict(rule)
    if last is not None and last.retired_at is None and all(getattr(last, k) == v for k, v in wanted.items()):
        return last, False
    Policy.objects.filter(project=project, name=rule.name, retired_at__isnull=True).update(retired_at=Now())
    number = last.version + 1 if last is not None else 1
    return Policy.objects.create(project=project, version=number, created_by=by, **wanted), True

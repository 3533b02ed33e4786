"""Which rule applies to a call, and how rules come to be: a change is a new version. Decides nothing about people."""

from __future__ import annotations

from dataclasses import asdict
from fnmatch import fnmatchcase

from django.db import transaction
from django.db.models.functions import Now

from approvals.contracts import Call, PolicyResult, Rule
from approvals.models import Policy

POLICIES_MAX = 1_000  # rules in force per project that one decision looks at


def decide(call: Call) -> PolicyResult:
    """The answer of the narrowest matching rule; of equally narrow ones, of the latest."""
    in_force = Policy.objects.filter(project=call.project, retired_at__isnull=True).order_by("-created_at", "-id")
    matching = [rule for rule in in_force[:POLICIES_MAX] if _matches(rule, call)]
    if not matching:
        return _default(call)
    return _result(max(matching, key=_narrowness))  # max() keeps the first of equals, which is the latest


def _matches(rule: Policy, call: Call) -> bool:
    return (
        fnmatchcase(call.agent, rule.agent) and fnmatchcase(call.tool, rule.tool) and rule.effect in ("", call.effect)
    )


def _narrowness(rule: Policy) -> tuple[int, int, int]:
    """How much a rule pins down: exact names before patterns, long patterns before short ones."""
    patterns = (rule.tool, rule.agent)
    exact = sum(not set(pattern) & set("*?[") for pattern in patterns)
    literal = sum(len(pattern.replace("*", "")) for pattern in patterns)
    return exact, literal, int(bool(rule.effect))


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
    versions = Policy.objects.select_for_update().filter(project=project, name=rule.name).order_by("-version")
    last = versions.first()
    wanted = asdict(rule)
    if last is not None and last.retired_at is None and all(getattr(last, k) == v for k, v in wanted.items()):
        return last, False
    Policy.objects.filter(project=project, name=rule.name, retired_at__isnull=True).update(retired_at=Now())
    number = last.version + 1 if last is not None else 1
    return Policy.objects.create(project=project, version=number, created_by=by, **wanted), True

"""Which rule applies to a call. Reads the policies; decides nothing about people."""

from __future__ import annotations

from fnmatch import fnmatchcase

from approvals.contracts import Call, PolicyResult
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

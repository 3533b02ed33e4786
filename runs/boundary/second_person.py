"""The second-person rule: whoever wanted an effect does not say what became of it. In force by RECONCILE_FOUR_EYES."""

from __future__ import annotations

from collections.abc import Iterator

from django.conf import settings

from approvals import people
from approvals.models import Decision
from kernel_project.primitives.errors import Forbidden
from runs.models import Operation

DECISIONS_READ_MAX = 200  # applied votes on one call; a quorum is far smaller


def check(operation: Operation, name: str) -> None:
    """Raise Forbidden if this person had a part in the operation, under this or another of their names."""
    if reason := why_not(operation, name):
        raise Forbidden(f"{reason}: by RECONCILE_FOUR_EYES somebody else must say what became of it")


def why_not(operation: Operation, name: str) -> str:
    """Why this person may not resolve it; empty if they may, or if the rule is not in force."""
    if not settings.RECONCILE_FOUR_EYES:
        return ""
    own = {alike.lower() for alike in people.same_person({name})} | {name.lower()}
    return next((reason for other, reason in _parts(operation) if other.lower() in own), "")


def _parts(operation: Operation) -> Iterator[tuple[str, str]]:
    """Who had which part in it."""
    run = operation.run
    yield run.started_by, "you started this run"
    yield run.resumed_by, "you let this run go on"
    yield operation.edited_by, "you wrote the arguments of this call"
    votes = Decision.objects.filter(approval__operation_id=operation.id, applied=True, verdict="approve")
    for voter in votes.values_list("actor", flat=True)[:DECISIONS_READ_MAX]:
        yield voter, "you approved this call"

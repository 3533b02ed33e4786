"""The second-person rule: whoever wanted an effect does not say what became of it. In force by RECONCILE_FOUR_EYES."""

from __future__ import annotations

import json
from collections.abc import Iterator

from django.conf import settings

from approvals import people
from approvals.models import Decision
from kernel_project.primitives.errors import Forbidden
from outbox.models import Event
from runs.models import Operation, Run

ANCESTORS_MAX = 11  # the run itself and ten above it
EVENTS_READ_MAX = 2_000  # per run, the latest first
PARTS = {"run.resumed": "you let this run go on", "run.message": "you wrote to this run"}
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
    parts = ((alike, reason) for other, reason in _parts(operation) for alike in people.behind(other))
    return next((reason for other, reason in parts if other.lower() in own), "")


def _parts(operation: Operation) -> Iterator[tuple[str, str]]:
    """Who had which part in it: in its run, or in a run that let this one do its work."""
    yield operation.edited_by, "you wrote the arguments of this call"
    votes = Decision.objects.filter(approval__operation_id=operation.id, applied=True, verdict="approve")
    for voter in votes.values_list("actor", flat=True)[:DECISIONS_READ_MAX]:
        yield voter, "you approved this call"
    run: Run | None = operation.run
    for _ in range(ANCESTORS_MAX):
        if run is None:
            break
        yield from _parts_in(run)
        run = Run.objects.filter(id=run.parent_id).first() if run.parent_id else None


def _parts_in(run: Run) -> Iterator[tuple[str, str]]:
    """The run's row holds only who let it go on last; the journal remembers everybody."""
    yield run.started_by, "you started this run"
    yield run.resumed_by, "you let this run go on"
    told = Event.objects.filter(run_id=run.id, type__in=PARTS).order_by("-sequence")
    for kind, envelope in told.values_list("type", "envelope")[:EVENTS_READ_MAX]:
        yield json.loads(envelope)["context"]["actor"]["id"], PARTS[kind]

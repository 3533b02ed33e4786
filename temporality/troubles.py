"""What the event store could not take as it came, counted up to a limit, for the console. Reads only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.db.models import F, QuerySet

from temporality.generations import live
from temporality.models import Conflict, Pending, Progress

COUNTED_MAX = 1_000  # of each; beyond it "1 000 or more" is said


@dataclass(frozen=True)
class Troubles:
    conflicts: int
    quarantined: int
    waiting: int
    gaps: int


def troubles() -> Troubles:
    """Second versions that were refused, events that wait for a meaning or a parent, runs with a hole."""
    pending = Pending.objects.filter(generation__in=live())
    holes = Progress.objects.filter(generation__in=live(), contiguous__lt=F("highest"))
    return Troubles(
        conflicts=_count(Conflict.objects.all()),
        quarantined=_count(pending.filter(state=Pending.State.QUARANTINED)),
        waiting=_count(pending.filter(state=Pending.State.WAITING)),
        gaps=_count(holes),
    )


def _count(rows: QuerySet[Any]) -> int:
    return rows.order_by()[:COUNTED_MAX].count()

"""Looking after runs from the database's side: what a workflow reads when it looks, and lost wake-ups healed."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from django.db import transaction
from django.db.models.functions import Now

from approvals import services as approvals
from runs.loop.contracts import Seen
from runs.loop.turns import tickets
from runs.models import Run

LOOKS_MAX = 256  # calls of one turn, and so the most that one look asks about
WAKE_AFTER_SECONDS = 2.0  # unread news older than this is told again
WAKE_BATCH_MAX = 500  # runs that one sweep wakes


def look(run_id: UUID, operation_ids: tuple[UUID, ...]) -> Seen:
    """Where these calls stand; marks the run's news as read and ends requests whose deadline has passed."""
    assert len(operation_ids) <= LOOKS_MAX
    for operation_id in operation_ids:
        approvals.expire(operation_id)
    with transaction.atomic():
        # the news is read before the rows: what comes in between is news again
        Run.objects.filter(id=run_id).update(wake_since=None)
        cancel = Run.objects.values_list("cancel_requested_at", flat=True).get(id=run_id)
        return Seen(tickets=tickets(run_id, operation_ids), cancel_requested=cancel is not None)


def overdue_news(limit: int = WAKE_BATCH_MAX) -> list[tuple[UUID, bool]]:
    """Live runs with news that nobody read in time, and whether each is to be cancelled."""
    waiting = Run.objects.filter(wake_since__lte=Now() - timedelta(seconds=WAKE_AFTER_SECONDS), state__in=Run.LIVE)
    rows = waiting.order_by("wake_since").values_list("id", "cancel_requested_at")[:limit]
    return [(run_id, cancel is not None) for run_id, cancel in rows]

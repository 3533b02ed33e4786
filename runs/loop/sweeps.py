"""Looking after runs from the database's side: what a workflow reads when it looks, and lost wake-ups healed."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

from django.db import connection, transaction
from django.db.models.functions import Now

from approvals import selectors as requests
from approvals import services as approvals
from kernel_project.primitives.errors import Conflict
from kernel_project.primitives.sql import load
from outbox.contracts import Actor
from runs.boundary.operations import HERE
from runs.loop import endings
from runs.loop.contracts import Seen
from runs.loop.turns import hear, tickets
from runs.models import News, Run

LOOKS_MAX = 256  # calls of one turn, and so the most that one look asks about
WAKE_BATCH_MAX = 500  # runs that one sweep wakes
TELL_SOON = timedelta(seconds=1)
TELLS_FACTOR_MAX = 5  # news is told again after 2, 4, 8, … at most 64 s: a workflow in a long call cannot look yet


def look(run_id: UUID, operation_ids: Sequence[UUID], *, close: bool = False, resumption: int | None = None) -> Seen:
    """Where these calls stand; marks the run's news as read and ends requests whose deadline has passed.

    `close` withdraws all calls that have not left. An execution that the run went on without, by a later `resumption`
    or because its own was given up, is told to stop.
    """
    assert len(operation_ids) <= LOOKS_MAX
    if operation_ids:
        approvals.expire(operation_ids)
        _cancel_if_declared(run_id, operation_ids)
    if close:
        endings.close_calls(run_id)
    with transaction.atomic():
        # the news is read before the rows: what comes in between is news again
        hear(run_id)
        run = Run.objects.only("cancel_requested_at", "state", "resumes", "resuming_since").get(id=run_id)
        found = tickets(run_id, operation_ids) if operation_ids else ()
    is_over = run.state in Run.ENDED and run.resuming_since is None
    is_stale = resumption is not None and (run.resumes != resumption or is_over)
    return Seen(tickets=found, cancel_requested=run.cancel_requested_at is not None or is_stale)


def _cancel_if_declared(run_id: UUID, operation_ids: Sequence[UUID]) -> None:
    """Requests that expired under a policy that cancels the run then: whoever ended them may have died since."""
    for policy in requests.cancelling(operation_ids).values():
        project = Run.objects.values_list("project_id", flat=True).get(id=run_id)
        cancel_expired(run_id, project, policy)


def cancel_expired(run_id: UUID, project: str, policy: str) -> None:
    """Cancel a run because nobody decided in time, as its policy declares. A run that has ended stays as it is."""
    actor = Actor(id=f"policy {policy}", type="system")
    with contextlib.suppress(Conflict):
        endings.request_cancel(run_id, project, by=actor, reason="nobody decided before the deadline")


def overdue_news(limit: int = WAKE_BATCH_MAX) -> list[tuple[UUID, bool]]:
    """Live runs with news that nobody read in time, and whether each is to be cancelled; puts off the next telling."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(load(HERE, "overdue_news"), {"limit": limit, "doublings_max": TELLS_FACTOR_MAX})
        return list(cursor.fetchall())


def tell_soon(run_ids: Sequence[UUID]) -> None:
    """Tell the news of these runs again in a moment, as if it had not been told: Temporal did not take it."""
    News.objects.filter(run_id__in=run_ids).update(tells=0, tell_at=Now() + TELL_SOON)


def forget_old_news(older_than: timedelta = timedelta(hours=1)) -> int:
    """Remove news of runs that have ended since."""
    old = News.objects.filter(at__lt=Now() - older_than)
    live = Run.objects.filter(state__in=Run.LIVE, id__in=old.values("run_id")).values("id")
    return old.exclude(run_id__in=live).delete()[0]

"""Carry news to the workflows: at once after the commit, and again by the sweep when that was lost."""

from __future__ import annotations

from functools import partial
from typing import Any
from uuid import UUID

from django.db import transaction
from django.dispatch import receiver

from approvals.models import Approval, Expiry
from approvals.signals import resolved
from runs.loop import sweeps, temporal
from runs.signals import news


@receiver(news)
def wake_after_commit(run_id: UUID, cancel: bool = False, **_: Any) -> None:
    """Never waits and never raises: the row already says that there is news."""
    temporal.wake(run_id, cancel=cancel)


@receiver(resolved)
def cancel_after_expiry(approval: Approval, **_: Any) -> None:
    """Where policy says so, a request that nobody decided ends its run. Is this lost, the workflow's look does it."""
    if approval.state == Approval.State.EXPIRED and approval.on_expiry == Expiry.CANCEL_RUN:
        cancel = partial(sweeps.cancel_expired, approval.run_id, approval.project, approval.policy_name)
        transaction.on_commit(cancel, robust=True)


def wake_overdue() -> int:
    """Tell news again that a workflow has not looked at in time; returns how many runs were woken.

    What Temporal took is in its hands, and told again ever more rarely. What it did not take is told as soon as it is
    back, however long it was away.
    """
    overdue = sweeps.overdue_news()
    lost = temporal.wake_all(overdue)
    sweeps.tell_soon(lost)
    return len(overdue) - len(lost)

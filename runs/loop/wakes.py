"""Carry news to the workflows: at once after the commit, and again by the sweep when that was lost."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.dispatch import receiver

from runs.loop import sweeps, temporal
from runs.signals import news


@receiver(news)
def wake_after_commit(run_id: UUID, cancel: bool = False, **_: Any) -> None:
    """Never waits and never raises: the row already says that there is news."""
    temporal.wake(run_id, cancel=cancel)


def wake_overdue() -> int:
    """Tell news again that a workflow has not looked at in time; returns how many runs were woken."""
    overdue = sweeps.overdue_news()
    for run_id, cancel in overdue:
        temporal.wake(run_id, cancel=cancel)
    return len(overdue)

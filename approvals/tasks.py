"""Celery's doors to approvals."""

from __future__ import annotations

from celery import shared_task

from approvals import services


@shared_task(name="approvals.expire", ignore_result=True)
def expire() -> int:
    """End requests whose deadline has passed; the workflow's own timer may have been faster."""
    return services.expire_due()

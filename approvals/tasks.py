"""Celery's doors to approvals."""

from __future__ import annotations

from celery import shared_task

from approvals import deliveries, services


@shared_task(name="approvals.expire", ignore_result=True)
def expire() -> int:
    """End requests whose deadline has passed; the workflow's own timer may have been faster."""
    return services.expire_due()


@shared_task(name="approvals.announce", ignore_result=True)
def announce() -> int:
    """Send the messages about requests that are due."""
    return deliveries.send_due()

"""Celery's doors to the outbox: stateless ticks, each of which may be lost, doubled or late."""

from __future__ import annotations

from celery import shared_task
from django.conf import settings
from django.db import connection, transaction

from outbox import lag_history, partitions, retention, seen
from outbox.destination import EventStore
from outbox.publisher import Publisher

PUBLISH_SECONDS = 50.0  # one task's share; the next tick goes on


@shared_task(name="outbox.publish", ignore_result=True)
def publish() -> int:
    """Publish until the share is over; ends at once when another publisher is at work."""
    store = EventStore(settings.TEMPORALITY_URL, settings.TEMPORALITY_TOKEN)
    publisher = Publisher(store)
    try:
        return publisher.run(PUBLISH_SECONDS)
    finally:
        publisher.close()
        store.close()


@shared_task(name="outbox.look_over_there", ignore_result=True)
def look_over_there() -> int:
    """Ask the event store how far it has the runs that moved."""
    return seen.look()


@shared_task(name="outbox.sample_lag", ignore_result=True)
def sample_lag() -> None:
    """Keep the lag as it is now, for the chart of the last hour."""
    lag_history.note()


@shared_task(name="outbox.make_partitions", ignore_result=True)
def make_partitions() -> list[str]:
    """Make the journal's partitions ahead of time."""
    with transaction.atomic():
        return partitions.ensure_ahead(connection, partitions.database_now())


@shared_task(name="outbox.drop_old_months", ignore_result=True)
def drop_old_months() -> list[str]:
    """Drop the months of the journal whose retention is over; tells which."""
    looked = retention.drop_old(partitions.database_now(), settings.OUTBOX_KEEP_MONTHS)
    return [month.partition for month in looked if month.dropped]

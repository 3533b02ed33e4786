"""The publisher's place at the destination and the destination's circuit: one row, judged by the database clock."""

from __future__ import annotations

import logging
import random
from datetime import timedelta
from pathlib import Path
from uuid import UUID

from django.db import connection, transaction
from django.db.models import F
from django.db.models.functions import Now

from kernel_project.primitives.sql import load
from outbox.destination import DestinationFailed
from outbox.models import Destination, PublisherHeartbeat

logger = logging.getLogger(__name__)
HERE = Path(__file__).parent

PLACE_SECONDS = 5.0  # a publisher that does not renew its place this long is replaced
CLOCK_MARGIN_SECONDS = 5.0  # a smaller step back of the database's clock takes nothing from anybody who is at work
HEARTBEATS_KEPT_DAYS = 7  # of publishers that are gone
BACKOFF_FIRST_SECONDS = 0.5
BACKOFF_MAX_SECONDS = 60.0


@transaction.atomic
def take(destination: str, token: UUID) -> bool:
    """Take the place, unless another publisher keeps it alive; the leases of those who lost it are given back at once.

    An order break cannot come of that: what one of them may still have on its way was sent in order, too, and each
    request only after the one before it was answered.
    """
    Destination.objects.get_or_create(name=destination)
    row = _one("take_place", destination, token)
    if row is None:
        Destination.objects.filter(name=destination).update(turned_away=F("turned_away") + 1)
        return False
    with connection.cursor() as cursor:
        cursor.execute(load(HERE, "give_back_leases"))
        freed = cursor.rowcount
    [replaced] = row
    if replaced:
        logger.warning("a publisher ended without leaving its place; %d leases were given back", freed)
        PublisherHeartbeat.objects.filter(beat_at__lt=Now() - timedelta(days=HEARTBEATS_KEPT_DAYS)).delete()
    return True


def renew(destination: str, token: UUID) -> bool:
    """Keep the place; False when it was lost: then another publisher may be at work."""
    row = Destination.objects.filter(name=destination, worker_token=token, worker_until__gt=Now())
    return row.update(worker_until=Now() + timedelta(seconds=PLACE_SECONDS)) == 1


def leave(destination: str, token: UUID) -> None:
    Destination.objects.filter(name=destination, worker_token=token).update(worker_token=None, worker_until=None)


def note_success(destination: str) -> None:
    """Something was taken: the circuit is closed."""
    Destination.objects.filter(name=destination).update(
        failures=0, open_until=None, last_error="", last_success_at=Now()
    )


def note_failure(destination: str, failure: DestinationFailed) -> None:
    """Open the circuit, with full jitter or as long as the store asked."""
    row = Destination.objects.filter(name=destination)
    failures = (row.values_list("failures", flat=True).first() or 0) + 1
    asked = failure.retry_after_seconds
    delay = asked if asked is not None else random.uniform(0, backoff_seconds(failures))  # noqa: S311  no secret
    row.update(failures=F("failures") + 1, open_until=Now() + timedelta(seconds=delay), last_error=failure.message)
    logger.warning("the event store takes nothing (%s); next try in %.1f s", failure.message, delay)


def backoff_seconds(failures: int) -> float:
    """The ceiling of the wait after so many failures in a row."""
    return float(min(BACKOFF_FIRST_SECONDS * 2 ** min(failures - 1, 10), BACKOFF_MAX_SECONDS))


def beat(publisher: str, published: int, fenced: int) -> None:
    """Say that the publisher lives, and add what it did since it last said so."""
    _one("beat", publisher=publisher, published=published, fenced=fenced)


def _one(name: str, destination: str = "", token: UUID | None = None, **more: str | int) -> tuple[object, ...] | None:
    with connection.cursor() as cursor:
        cursor.execute(
            load(HERE, name),
            {
                "destination": destination,
                "token": token,
                "place_seconds": PLACE_SECONDS,
                "margin_seconds": CLOCK_MARGIN_SECONDS,
                **more,
            },
        )
        found: tuple[object, ...] | None = cursor.fetchone()
    return found

"""Scenes for the outbox's tests: runs that tell something, and how much of it is still to be sent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models.functions import Now

from outbox import services
from outbox.contracts import NewEvent
from outbox.destination import EventStore
from outbox.models import Destination, Event, Stream
from outbox.publisher import Publisher
from tests.fakes.event_store import FakeEventStore

PROJECT = "demo"


@contextmanager
def publishing(store: FakeEventStore) -> Iterator[Publisher]:
    """A publisher to this store."""
    sink = EventStore(store.url, "token")
    Destination.objects.create(name=sink.name)
    made = Publisher(sink)
    yield made
    made.close()
    sink.close()


def write(run: UUID, *subjects: str, **data: Any) -> None:
    """Tell happenings of a run, in one transaction."""
    with transaction.atomic():
        services.append(
            [
                NewEvent(run_id=run, project=PROJECT, type="test.happened", subject=name, data=dict(data))
                for name in subjects
            ]
        )


def numbered(count: int) -> list[str]:
    return [str(n) for n in range(count)]


def pending() -> int:
    return sum(stream.head - stream.published for stream in Stream.objects.all())


def reopen(publisher: Publisher) -> None:
    """The waits of the circuit and of held streams are over."""
    Destination.objects.filter(name=publisher.sink.name).update(open_until=Now() - timedelta(seconds=1))
    Stream.objects.update(next_attempt_at=None)


def leases_expire() -> None:
    """So much time has passed that no lease of anybody is valid."""
    Stream.objects.filter(leased_until__isnull=False).update(leased_until=Now() - timedelta(seconds=1))


def unaccounted() -> int:
    """Events of the journal that no cursor knows, or that cursors promise and the journal does not hold."""
    return abs(Event.objects.count() - sum(stream.head for stream in Stream.objects.all()))

"""I5. Lag and gap are numbers from the tables; nothing counts as known to the event store before it said so."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection, transaction
from django.db.models.functions import Now

from kernel_project.primitives.ids import new_id
from outbox import selectors, services
from outbox.api import project_lag
from outbox.contracts import NewEvent
from outbox.models import Destination, Event, ParkedEvent, PublisherHeartbeat, Stream

pytestmark = pytest.mark.django_db(transaction=True)


def tell(run_id, count):
    with transaction.atomic():
        services.append([NewEvent(run_id=run_id, project="demo", type="t", subject=str(n)) for n in range(count)])


def test_an_empty_outbox_has_no_lag_and_no_ages():
    found = selectors.lag()
    assert (found.pending, found.streams_behind, found.parked, found.unaccounted) == (0, 0, 0, 0)
    assert found.oldest_age_seconds is None
    assert found.publisher_late


def test_pending_and_the_age_of_the_oldest_are_counted_until_they_are_acknowledged():
    one, other = new_id(), new_id()
    tell(one, 3)
    tell(other, 2)
    Stream.objects.filter(run_id=one).update(ready_at=Now() - timedelta(minutes=5))
    found = selectors.lag()
    assert (found.pending, found.streams_behind, found.unaccounted) == (5, 2, 0)
    assert 300 <= (found.oldest_age_seconds or 0) < 330
    Stream.objects.filter(run_id=one).update(published=3, ready_at=None)
    assert selectors.lag().pending == 2


def test_an_event_that_vanished_from_the_journal_is_unaccounted():
    run = new_id()
    tell(run, 3)
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL kernel.purge = 'on'")
        Event.objects.filter(run_id=run, sequence=2)._raw_delete("default")
    assert selectors.lag().unaccounted == 1


def test_parked_events_circuit_and_publisher_are_told():
    run = new_id()
    tell(run, 1)
    event = Event.objects.get(run_id=run)
    ParkedEvent.objects.create(event_id=event.event_id, run_id=run, sequence=1, reason="conflict", last_error="no")
    Destination.objects.create(
        name=selectors.current_destination(),
        failures=3,
        open_until=Now() + timedelta(seconds=30),
        last_error="HTTP 503",
    )
    PublisherHeartbeat.objects.create(publisher="p", beat_at=Now() - timedelta(seconds=4))
    found = selectors.lag()
    assert (found.parked, found.destination_failures, found.destination_error) == (1, 3, "HTTP 503")
    assert 25 < (found.circuit_open_seconds or 0) <= 30
    assert 4 <= (found.publisher_age_seconds or 0) < 10
    assert not found.publisher_late


def test_only_the_destination_of_now_is_judged():
    """A row of an event store that events went to once says nothing about the one they go to now."""
    Destination.objects.create(name="x", failures=3, open_until=Now() + timedelta(seconds=30), last_error="HTTP 503")
    for found in (selectors.lag(), project_lag("demo")):
        assert (found.destination_failures, found.circuit_open_seconds) == (0, None)


def test_seen_is_unknown_until_the_event_store_was_asked():
    run = new_id()
    assert selectors.stream_lag(run) is None
    tell(run, 4)
    Stream.objects.filter(run_id=run).update(published=4, ready_at=None)
    found = selectors.stream_lag(run)
    assert found is not None
    assert (found.head, found.published, found.seen, found.pending) == (4, 4, None, 0)
    recent = selectors.recent_delivery()
    assert (recent.written, recent.acknowledged, recent.streams_asked, recent.seen) == (4, 4, 0, 0)


def test_acknowledged_but_not_seen_over_there_is_a_gap():
    run = new_id()
    tell(run, 4)
    Stream.objects.filter(run_id=run).update(published=4, ready_at=None, seen=2, seen_at=Now())
    assert selectors.recent_delivery().streams_with_gap == 1

"""The home page's sentence about the outbox says what is true of refused events, too."""

from __future__ import annotations

import pytest
from django.db.models.functions import Now

from kernel_project import dashboard
from kernel_project.primitives.ids import new_id
from outbox import parked, place
from outbox.contracts import Actor
from outbox.models import Event, ParkedEvent, Stream
from tests.outbox_scene import write

pytestmark = pytest.mark.django_db(transaction=True)


def delivered() -> None:
    for stream in Stream.objects.all():
        Stream.objects.filter(run_id=stream.run_id).update(published=stream.head, ready_at=None)


def sentence() -> str:
    place.beat("p", 0, 0)
    return dashboard._lag().notice


def refused() -> Event:
    write(new_id(), "a")
    event = Event.objects.get()
    ParkedEvent.objects.create(
        event_id=event.event_id, run_id=event.run_id, sequence=1, reason="conflict", last_error=""
    )
    delivered()
    return event


def test_when_all_was_acknowledged_it_says_so():
    write(new_id(), "a")
    delivered()
    assert sentence() == "Everything that was written has been acknowledged."


def test_a_parked_event_is_not_called_acknowledged():
    refused()
    assert (
        sentence() == "1 event was refused by the event store and waits for a person. All else has been acknowledged."
    )


def test_an_event_that_was_given_up_is_not_called_acknowledged():
    parked.give_up(refused().event_id, by=Actor("ann", "human"), note="a test event")
    delivered()
    assert sentence() == "1 event was given up by a person. All else that was written has been acknowledged."


def test_a_replayed_event_is_acknowledged():
    refused()
    ParkedEvent.objects.update(state="replayed", resolved_at=Now())
    assert sentence() == "Everything that was written has been acknowledged."

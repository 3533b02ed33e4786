"""T20, T22, C49. The publisher is killed between each two of its writes: nothing is lost, changed, or out of order."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
from django.db.models.functions import Now

from kernel_project.primitives.ids import new_id
from outbox import parked
from outbox.contracts import Actor
from outbox.destination import EventStore
from outbox.models import Destination, Event, ParkedEvent, Stream
from outbox.publisher import Publisher
from tests.fakes.event_store import FakeEventStore, fake_event_store
from tests.outbox_scene import numbered, pending, unaccounted, write
from tests.outbox_victim import POINTS, kill_at

pytestmark = pytest.mark.django_db(transaction=True)
REFUSED = {"status": "rejected", "error": "data.n is no number"}


@pytest.fixture
def store() -> Iterator[FakeEventStore]:
    with fake_event_store() as fake:
        yield fake


def take_over(store: FakeEventStore) -> Publisher:
    """The next publisher, when the place of the dead one has expired."""
    Destination.objects.update(worker_until=Now() - timedelta(seconds=1), open_until=None)
    sink = EventStore(store.url, "token")
    publisher = Publisher(sink)
    publisher.run(1.5)
    publisher.close()
    sink.close()
    return publisher


@pytest.mark.parametrize("point", POINTS[:-1])
def test_t20_killed_there_each_event_arrives_once_unchanged_and_in_order(store, point):
    runs = [new_id() for _ in range(3)]
    for run in runs:
        write(run, *numbered(5))
    store.judge = lambda e: REFUSED if (e["context"]["run"], e["data"]["sequence"]) == (str(runs[0]), 3) else None
    kill_at(point, store.url)
    take_over(store)
    assert (pending(), unaccounted(), store.changed, store.order_breaks()) == (0, 0, [], [])
    assert len(store.kept) == 14
    assert [tuple(row) for row in ParkedEvent.objects.values_list("run_id", "sequence")] == [(runs[0], 3)]
    envelopes = {str(event.event_id): event.envelope.encode() for event in Event.objects.all()}
    assert all(envelopes[name] in b"".join(store.bodies) for name in store.kept)
    assert not Stream.objects.filter(lease_token__isnull=False).exists()


def test_t20_killed_after_a_replay_was_taken_it_is_replayed_once_more_and_repeated(store):
    run = new_id()
    write(run, "a")
    store.judge = lambda _event: REFUSED
    take_over(store)
    parked.replay(Event.objects.get().event_id, by=Actor(id="ann", type="human"), note="fixed")
    store.judge = lambda _event: None
    kill_at(POINTS[-1], store.url)
    take_over(store)
    assert (ParkedEvent.objects.get().state, store.changed, unaccounted()) == ("replayed", [], 0)

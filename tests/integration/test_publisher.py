"""F9, S4, O3: what is in the journal reaches the event store, in order per run, at least once, whatever it answers."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from uuid import uuid4

import pytest
from django.db import transaction
from django.db.models.functions import Now

from kernel_project.primitives.ids import new_id
from outbox import place, services
from outbox import publisher as module
from outbox.contracts import NewEvent
from outbox.destination import EventStore
from outbox.models import Destination, Event, ParkedEvent, Stream
from outbox.publisher import NullSink, Publisher
from tests.fakes.event_store import CONFLICT, FakeEventStore, failing, fake_event_store
from tests.outbox_scene import numbered, pending, publishing, reopen, write

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def store() -> Iterator[FakeEventStore]:
    with fake_event_store() as fake:
        yield fake


@pytest.fixture
def publisher(store: FakeEventStore) -> Iterator[Publisher]:
    with publishing(store) as made:
        yield made


def test_all_events_arrive_in_the_order_of_their_run(store, publisher):
    runs = [new_id() for _ in range(5)]
    for run in runs:
        write(run, *numbered(120))
    publisher.drain()
    assert pending() == 0
    for run in runs:
        assert store.sequences(str(run)) == list(range(1, 121))


def test_a_batch_never_has_more_than_a_hundred_events(store, publisher):
    write(new_id(), *numbered(250))
    publisher.drain()
    assert max(body.count(b'"schema"') for body in store.bodies) == 100


def test_what_was_sent_is_byte_for_byte_what_was_written(store, publisher):
    """C49, T47."""
    run = new_id()
    write(run, "a", "b")
    stored = list(Event.objects.filter(run_id=run).order_by("sequence").values_list("envelope", flat=True))
    publisher.drain()
    assert store.bodies == [b'{"events":[' + ",".join(stored).encode() + b"]}"]


def test_killed_between_answer_and_acknowledgement_it_sends_the_same_bytes_again(store, publisher, monkeypatch):
    """T20."""
    write(new_id(), "a", "b")
    with monkeypatch.context() as patch:
        patch.setattr(publisher, "_advance", lambda *_: (_ for _ in ()).throw(SystemExit))
        with pytest.raises(SystemExit):
            publisher.pass_once()
    Stream.objects.update(leased_until=Now() - timedelta(seconds=1))
    Publisher(publisher.sink).drain()
    assert store.bodies[0] == store.bodies[1]
    assert len(store.kept) == 2
    assert pending() == 0


def test_a_store_that_is_down_costs_no_attempt_and_no_event(store, publisher):
    """F9, T25."""
    write(new_id(), "a")
    store.answer = failing(503)
    publisher.pass_once()
    row = Destination.objects.get(name=publisher.sink.name)
    assert (row.failures, "503" in row.last_error) == (1, True)
    assert Stream.objects.get().attempts == 0
    store.answer = store.take
    reopen(publisher)
    publisher.drain()
    assert pending() == 0
    assert Destination.objects.get(name=publisher.sink.name).failures == 0


def test_an_unreachable_store_opens_the_circuit(publisher):
    sink = EventStore("http://127.0.0.1:9", "token")
    Destination.objects.create(name=sink.name)
    write(new_id(), "a")
    lonely = Publisher(sink)
    assert lonely.pass_once() == 0
    assert Destination.objects.get(name=sink.name).failures == 1
    assert pending() == 1


def test_retry_after_is_obeyed_for_the_whole_destination(store, publisher):
    """T24."""
    write(new_id(), "a")
    store.answer = failing(429, Retry_After="120")
    publisher.pass_once()
    left = Destination.objects.get(name=publisher.sink.name).open_until - Event.objects.get().recorded_at
    assert 100 < left.total_seconds() < 140
    assert publisher._claim()[1] == []


def test_half_open_it_tries_with_one_event_and_then_goes_on_at_full_size(store, publisher):
    write(new_id(), *numbered(150))
    store.answer = failing(500)
    publisher.pass_once()
    store.answer = store.take
    store.bodies.clear()
    reopen(publisher)
    publisher.pass_once()
    assert [body.count(b'"schema"') for body in store.bodies] == [1, 100, 49]


def test_half_open_a_second_failure_costs_one_request(store, publisher):
    write(new_id(), *numbered(150))
    store.answer = failing(500)
    publisher.pass_once()
    reopen(publisher)
    before = store.requests
    publisher.pass_once()
    assert store.requests == before + 1


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        ({"status": "rejected", "error": CONFLICT}, "conflict"),
        ({"status": "rejected", "error": "x", "code": "conflict"}, "conflict"),
        ({"status": "rejected", "error": "data.sequence is no number", "code": "invalid"}, "invalid"),
    ],
)
def test_an_event_refused_for_good_is_parked_and_its_stream_goes_on(store, publisher, result, reason):
    """C46, T23."""
    run = new_id()
    write(run, *numbered(3))
    store.judge = lambda event: result if event["data"]["sequence"] == 2 else None
    publisher.drain()
    assert store.sequences(str(run)) == [1, 3]
    assert pending() == 0
    assert list(ParkedEvent.objects.values_list("sequence", "reason", "state")) == [(2, reason, "parked")]


def test_a_storage_error_of_one_event_is_tried_again_and_parks_nothing(store, publisher):
    """T27: rejected with 207, and yet retryable."""
    run = new_id()
    write(run, *numbered(3))
    store.judge = lambda event: (
        {"status": "rejected", "error": "storage error"} if event["data"]["sequence"] == 2 else None
    )
    publisher.pass_once()
    assert Stream.objects.get().published == 1
    store.judge = lambda _event: None
    reopen(publisher)
    publisher.drain()
    assert sorted(store.sequences(str(run))) == [1, 2, 3]
    assert not ParkedEvent.objects.exists()


def test_an_event_that_the_answer_does_not_name_is_not_acknowledged(store, publisher):
    """T27."""
    write(new_id(), *numbered(3))
    store.judge = lambda event: {} if event["data"]["sequence"] == 3 else None
    publisher.pass_once()
    assert Stream.objects.get().published == 2


def test_one_bad_event_in_a_batch_that_is_refused_whole_is_found_and_parked(store, publisher):
    """T29, C46: 422 names the whole batch; the others must not wait for the guilty one."""
    runs = [new_id() for _ in range(4)]
    for run in runs:
        write(run, *numbered(30))
    bad = Event.objects.get(run_id=runs[2], sequence=7)

    def refuse(events):
        guilty = [n for n, event in enumerate(events) if event["event_id"] == str(bad.event_id)]
        if guilty:
            return 422, {}, b'{"error":"events[%d]: no"}' % guilty[0]
        return store.take(events)

    store.answer = refuse
    publisher.drain()
    assert len(store.kept) == 4 * 30 - 1
    assert ParkedEvent.objects.get().event_id == bad.event_id
    assert pending() == 0


def test_a_project_that_the_token_may_not_write_does_not_stop_the_others(store, publisher):
    """The near twin of T23: refused for its project, not for its content."""
    mine, foreign = new_id(), new_id()
    write(foreign, "a")
    write(mine, "a")

    def refuse(events):
        if any(event["context"]["run"] == str(foreign) for event in events):
            return 403, {}, b'{"error":"project not allowed"}'
        return store.take(events)

    store.answer = refuse
    publisher.drain()
    assert store.sequences(str(mine)) == [1]
    assert Stream.objects.get(run_id=foreign).last_error == "project not allowed"
    assert not ParkedEvent.objects.exists()


def test_a_stale_publisher_changes_nothing_and_is_counted(store, publisher):
    """T11, T14, fencing: the lease was lost while the answer was on its way."""
    write(new_id(), "a")

    def steal(events):
        Stream.objects.update(lease_token=uuid4())
        return store.take(events)

    store.answer = steal
    publisher.pass_once()
    assert publisher.fenced == 1
    assert Stream.objects.get().published == 0


def test_two_publishers_never_hold_one_stream(store, publisher):
    """T10."""
    write(new_id(), "a")
    _, first = publisher._claim()
    _, second = Publisher(publisher.sink)._claim()
    assert (len(first), len(second)) == (1, 0)


def test_only_one_publisher_works_at_a_time(store, publisher):
    """T34: the second tick returns at once."""
    assert place.take(publisher.sink.name, publisher.place)
    assert Publisher(publisher.sink).run(seconds=5) == 0
    assert Destination.objects.get(name=publisher.sink.name).turned_away == 1
    place.leave(publisher.sink.name, publisher.place)


def test_a_claim_never_takes_more_than_its_limit(monkeypatch):
    """T16."""
    for _ in range(5):
        write(new_id(), "a")
    monkeypatch.setattr(module, "STREAMS_PER_CLAIM", 3)
    _, lanes = Publisher(NullSink())._claim()
    assert len(lanes) == 3


def test_a_late_committer_is_published_after_all():
    """T01, C45: a transaction that stays open does not hide its events from anybody for good."""
    import threading

    early, late = new_id(), new_id()
    wrote, go = threading.Event(), threading.Event()

    def slow() -> None:
        with transaction.atomic():
            services.append([NewEvent(run_id=late, project="demo", type="t", subject="late", data={})])
            wrote.set()
            go.wait(20)
        from django.db import connection

        connection.close()

    thread = threading.Thread(target=slow)
    thread.start()
    wrote.wait(10)
    write(early, "early")
    sink = NullSink()
    Destination.objects.create(name=sink.name)
    Publisher(sink).drain()
    assert Stream.objects.get(run_id=early).published == 1
    go.set()
    thread.join(10)
    Publisher(sink).drain()
    assert Stream.objects.get(run_id=late).published == 1
    assert pending() == 0


def test_writers_and_a_publisher_on_the_same_stream_do_not_harm_each_other():
    """The row that the publisher moves is being written to all the time; every event arrives, none is left behind.

    PostgreSQL 18.4 ends with a segmentation fault when a concurrently changed row is checked again by an UPDATE that
    looks into a partitioned table, so sql/advance.sql must not do that.
    """
    import threading

    from django.db import connection

    run, sink = new_id(), NullSink()
    Destination.objects.create(name=sink.name)

    def append() -> None:
        for number in range(300):
            write(run, f"{threading.get_ident()}/{number}")
        connection.close()

    writers = [threading.Thread(target=append) for _ in range(2)]
    for writer in writers:
        writer.start()
    publisher = Publisher(sink)
    while any(writer.is_alive() for writer in writers):
        publisher.drain()
    for writer in writers:
        writer.join(30)
    publisher.drain()
    stream = Stream.objects.get(run_id=run)
    assert (stream.published, stream.head, publisher.published) == (600, 600, 600)

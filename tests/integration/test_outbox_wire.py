"""The publisher against any server of the wire contract: what each answer means for the events that were sent."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from uuid import uuid4

import pytest
from django.db.models.functions import Now

from kernel_project.primitives.ids import new_id
from outbox import destination, place
from outbox.destination import EventStore
from outbox.models import Destination, Event, ParkedEvent, Stream
from outbox.publisher import Publisher
from tests.fakes.event_store import CONFLICT, STORAGE, FakeEventStore, cutting, failing, fake_event_store, saying
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


def failures(publisher: Publisher) -> int:
    return Destination.objects.get(name=publisher.sink.name).failures


def test_a_server_without_our_additions_is_enough(store, publisher):
    run = new_id()
    write(run, *numbered(250))
    publisher.drain()
    assert store.sequences(str(run)) == list(range(1, 251))
    assert (pending(), publisher.published) == (0, 250)


def test_a_lost_answer_is_sent_again_with_the_same_bytes_and_repeated(store, publisher):
    """T20."""
    write(new_id(), *numbered(3))
    store.forgets_answers = 1
    publisher.pass_once()
    assert (pending(), failures(publisher)) == (3, 1)
    reopen(publisher)
    publisher.drain()
    assert (pending(), len(store.kept), store.changed) == (0, 3, [])


def test_t27_in_one_answer_taken_refused_and_unnamed_events_each_go_their_way(store, publisher):
    """207: an event is done only if the answer says so of this very event."""
    taken, refused, unnamed = new_id(), new_id(), new_id()
    for run in (taken, refused, unnamed):
        write(run, "a")
    verdicts = {str(refused): {"status": "rejected", "error": CONFLICT}, str(unnamed): {}}
    store.judge = lambda event: verdicts.get(event["context"]["run"])
    publisher.pass_once()
    published = dict(Stream.objects.values_list("run_id", "published"))
    assert published == {taken: 1, refused: 1, unnamed: 0}
    assert list(ParkedEvent.objects.values_list("run_id", "reason")) == [(refused, "conflict")]
    assert "did not name" in Stream.objects.get(run_id=unnamed).last_error


def test_200_with_no_results_acknowledges_nothing(store, publisher):
    write(new_id(), *numbered(2))
    store.answer = saying(200, b'{"accepted":2,"repeated":0,"results":[]}')
    publisher.pass_once()
    assert pending() == 2


def test_names_that_were_never_sent_are_passed_over(store, publisher):
    write(new_id(), "a")
    plain = store.take

    def with_strangers(events):
        status, headers, body = plain(events)
        answer = json.loads(body)
        answer["results"] += [
            {"source_id": "x", "event_id": name, "status": "rejected", "error": "no"} for name in ("not a uuid", "")
        ]
        return status, headers, json.dumps(answer).encode()

    store.answer = with_strangers
    publisher.drain()
    assert (pending(), ParkedEvent.objects.count()) == (0, 0)


def test_two_answers_for_one_event_that_disagree_acknowledge_and_park_nothing(store, publisher):
    write(new_id(), "a")
    event_id = str(Event.objects.get().event_id)
    results = [
        {"source_id": "s", "event_id": event_id, "status": "accepted"},
        {"source_id": "s", "event_id": event_id, "status": "rejected", "error": CONFLICT},
    ]
    store.answer = saying(207, json.dumps({"accepted": 1, "repeated": 0, "results": results}).encode())
    publisher.pass_once()
    assert (pending(), ParkedEvent.objects.count()) == (1, 0)


@pytest.mark.parametrize("status", ["queued", "ACCEPTED", ""])
def test_a_status_that_the_contract_does_not_know_is_neither_taken_nor_refused(store, publisher, status):
    write(new_id(), "a")
    store.judge = lambda _event: {"status": status}
    publisher.pass_once()
    assert (pending(), ParkedEvent.objects.count(), failures(publisher)) == (1, 0, 0)


@pytest.mark.parametrize(
    "answer",
    [
        saying(200, b"<html>welcome</html>"),
        saying(200, b""),
        saying(200, b"[" * 100_000),
        saying(200, b'{"results": "accepted"}'),
        saying(200, b"\xff\xfe\x00"),
        saying(202, b'{"accepted":1,"repeated":0,"results":[]}'),
        saying(302, b""),
        saying(401, b'{"error":"no token"}'),
        saying(404, b"not here"),
        saying(400, b"<html><h1>400 Bad Request</h1></html>"),
        saying(400, b""),
        saying(422, b'{"error": {"message": "no"}}'),
        saying(422, b'{"timestamp": 1, "status": 422, "error": "Unprocessable", "path": "/v1"}'),
        saying(422, b'["no"]'),
        saying(403, b"<html>blocked by the firewall</html>"),
        failing(500),
        failing(503, Retry_After="nonsense"),
        failing(503, Retry_After="99999999999999999999999999"),
        failing(429, Retry_After="Wed, 21 Oct 2099 07:28:00 GMT"),
        cutting,
    ],
)
def test_no_answer_that_says_nothing_of_the_events_loses_or_parks_one(store, publisher, answer):
    """T24, T25: it is the destination's failure, and no event's."""
    write(new_id(), *numbered(3))
    store.answer = answer
    publisher.pass_once()
    assert (pending(), ParkedEvent.objects.count(), failures(publisher)) == (3, 0, 1)
    assert Stream.objects.get().attempts == 0
    store.answer = store.take
    reopen(publisher)
    publisher.drain()
    assert (pending(), len(store.kept)) == (0, 3)


@pytest.mark.parametrize("status", [400, 413, 422])
def test_t25_a_fault_of_something_in_between_parks_no_single_event(store, publisher, status):
    write(new_id(), "a")
    store.answer = saying(status, b"<html>no</html>")
    publisher.pass_once()
    assert (pending(), ParkedEvent.objects.count()) == (1, 0)
    store.answer = store.take
    reopen(publisher)
    publisher.drain()
    assert (pending(), len(store.kept)) == (0, 1)


def test_a_proxy_that_takes_smaller_bodies_and_says_so_in_its_own_words_delays_no_other_run(store, publisher):
    """Its 413 is about the one body: what is too large even alone waits with its run, unparked."""
    large, small = new_id(), new_id()
    write(large, "a", text="x" * 50_000)
    write(small, "a")

    def proxy(events):
        if len(str(events)) > 20_000:
            return 413, {}, b"<html>413 Request Entity Too Large</html>"
        return store.take(events)

    store.answer = proxy
    publisher.drain()
    assert store.sequences(str(small)) == [1]
    assert (pending(), ParkedEvent.objects.count(), failures(publisher)) == (1, 0, 0)


def test_an_address_of_any_length_names_a_destination(store):
    """The table's key is short; two long addresses that begin alike are two destinations."""
    long = f"{store.url}/{'p' * 3_000}"
    one, other, short = (EventStore(url, "token") for url in (long + "1", long + "2", store.url))
    assert (len({one.name, other.name}), short.name) == (2, store.url)
    assert place.take(one.name, uuid4())
    assert place.take(other.name, uuid4())
    for sink in (one, other, short):
        sink.close()


def test_retry_after_as_a_date_is_obeyed_up_to_an_hour(store, publisher):
    """T24."""
    write(new_id(), "a")
    store.answer = failing(429, Retry_After="Wed, 21 Oct 2099 07:28:00 GMT")
    publisher.pass_once()
    assert Destination.objects.filter(open_until__gt=Now() + timedelta(minutes=55)).exists()
    assert Destination.objects.filter(open_until__lt=Now() + timedelta(minutes=65)).exists()


def test_retry_after_zero_means_at_once(store, publisher):
    write(new_id(), "a")
    store.answer = failing(503, Retry_After="0")
    publisher.pass_once()
    assert not Destination.objects.filter(open_until__gt=Now()).exists()


def test_an_answer_that_trickles_is_given_up_in_time(store, publisher, monkeypatch):
    """T11, T14: no other side decides how long a request lasts."""
    monkeypatch.setattr(destination, "ANSWER_SECONDS_MAX", 0.5)
    write(new_id(), "a")
    store.piece_seconds = 0.1
    began = time.monotonic()
    publisher.pass_once()
    assert time.monotonic() - began < 5
    assert (pending(), failures(publisher)) == (1, 1)


def test_an_answer_without_end_is_not_read_to_its_end(store, publisher, monkeypatch):
    monkeypatch.setattr(destination, "ANSWER_BYTES_MAX", 10_000)
    write(new_id(), "a")
    store.answer = saying(200, b" " * 1_000_000)
    publisher.pass_once()
    assert (pending(), failures(publisher)) == (1, 1)
    assert "without end" in Destination.objects.get(name=publisher.sink.name).last_error


def test_a_store_that_keeps_nothing_opens_the_circuit_although_it_answers_207(store, publisher):
    """T25: a storage error is retryable whatever the HTTP status is."""
    for _ in range(3):
        write(new_id(), "a", "b")
    store.judge = lambda _event: {"status": "rejected", "error": STORAGE}
    publisher.pass_once()
    assert (pending(), ParkedEvent.objects.count(), failures(publisher)) == (6, 0, 1)
    store.judge = lambda _event: None
    reopen(publisher)
    publisher.drain()
    assert pending() == 0


def test_t23_an_event_that_the_store_can_never_keep_delays_no_other_run(store, publisher):
    """The near twin of a poison event: not refused, but a storage error for ever."""
    poison, runs = new_id(), [new_id() for _ in range(3)]
    write(poison, "a")
    store.judge = lambda e: {"status": "rejected", "error": STORAGE} if e["context"]["run"] == str(poison) else None
    publisher.pass_once()
    for run in runs:
        write(run, *numbered(5))
    Destination.objects.update(open_until=None)
    publisher.drain()
    assert all(store.sequences(str(run)) == [1, 2, 3, 4, 5] for run in runs)
    stream = Stream.objects.get(run_id=poison)
    assert (stream.published, stream.attempts >= 1, stream.next_attempt_at is not None) == (0, True, True)


def test_a_held_stream_waits_longer_each_time(store, publisher):
    write(new_id(), "a")
    store.judge = lambda _event: {}
    waits = []
    for _ in range(3):
        publisher.pass_once()
        stream = Stream.objects.get()
        waits.append((stream.next_attempt_at - Event.objects.get().recorded_at).total_seconds())
        Stream.objects.update(next_attempt_at=None)
    assert Stream.objects.get().attempts == 3
    assert waits[2] > 2 * waits[0] - 10 > -10


def test_t29_one_event_that_is_too_large_is_parked_and_its_neighbours_go_out(store, publisher):
    run = new_id()
    write(run, "a")
    write(run, "b", text="x" * 50_000)
    write(run, "c")
    store.body_bytes_max = 20_000
    publisher.drain()
    assert store.sequences(str(run)) == [1, 3]
    assert list(ParkedEvent.objects.values_list("sequence", "reason")) == [(2, "too_large")]
    assert pending() == 0


def test_a_server_that_takes_smaller_bodies_and_batches_gets_them(store, publisher):
    """T29."""
    run = new_id()
    write(run, *numbered(100))
    store.events_max, store.body_bytes_max = 7, 3_000
    publisher.drain()
    assert store.sequences(str(run)) == list(range(1, 101))
    assert not ParkedEvent.objects.exists()


def test_c46_sixty_poison_events_ahead_of_good_ones_delay_nobody(store, publisher):
    """Refused as a whole with 422 and the place of the first guilty one, as the public journal does."""
    run, good = new_id(), new_id()
    write(run, *numbered(60))
    write(good, *numbered(3))
    write(run, "last")

    def refuse(events):
        guilty = [n for n, e in enumerate(events) if e["context"]["run"] == str(run) and e["data"]["sequence"] <= 60]
        if guilty:
            return 422, {}, json.dumps({"error": f"events[{guilty[0]}]: data.n is no number"}).encode()
        return store.take(events)

    store.answer = refuse
    publisher.pass_once()
    assert store.sequences(str(good)) == [1, 2, 3]  # with the first look already
    publisher.drain()
    assert store.sequences(str(run)) == [61]
    assert (ParkedEvent.objects.count(), pending()) == (60, 0)
    assert set(ParkedEvent.objects.values_list("last_error", flat=True)) == {"events[0]: data.n is no number"}


def test_a_server_that_names_the_wrong_event_does_not_get_it_parked(store, publisher):
    run = new_id()
    write(run, *numbered(10))

    def refuse(events):
        if any(e["data"]["sequence"] == 5 for e in events):
            return 422, {}, b'{"error":"events[0]: no"}'
        return store.take(events)

    store.answer = refuse
    publisher.drain()
    assert list(ParkedEvent.objects.values_list("sequence", flat=True)) == [5]
    assert store.sequences(str(run)) == [1, 2, 3, 4, 6, 7, 8, 9, 10]


def test_many_requests_are_on_their_way_at_once_but_never_two_of_one_run(store, publisher):
    """T10, O3: parallel between runs, in order within each."""
    runs = [new_id() for _ in range(8)]
    for run in runs:
        write(run, *numbered(200))
    store.pause_seconds = 0.02
    publisher.drain()
    assert store.at_once_max > 1
    assert store.runs_overlapped == set()
    assert store.order_breaks() == []
    assert pending() == 0


def test_a_slow_store_keeps_no_fresh_event_waiting_for_the_whole_backlog(store, publisher, monkeypatch):
    monkeypatch.setattr("outbox.publisher.ROUND_SECONDS", 0.2)
    for _ in range(6):
        write(new_id(), *numbered(200))
    store.pause_seconds = 0.15
    began = time.monotonic()
    publisher.pass_once()
    assert time.monotonic() - began < 5
    assert 0 < pending() < 1_200
    store.pause_seconds = 0.0
    publisher.drain()
    assert (pending(), store.order_breaks()) == (0, [])


def test_a_slow_database_does_not_use_up_the_time_for_sending(store, publisher, monkeypatch):
    """A round whose read took longer than a round's time would otherwise send nothing, for ever."""
    monkeypatch.setattr("outbox.publisher.ROUND_SECONDS", 0.3)
    write(new_id(), "a")
    read = publisher._read
    monkeypatch.setattr(publisher, "_read", lambda lanes: (time.sleep(0.5), read(lanes)))
    publisher.pass_once()
    assert pending() == 0


def test_texts_of_a_hostile_store_are_kept_short_and_storable(store, publisher):
    write(new_id(), "a")
    error = json.dumps({"error": "\x00" + "é" * 10_000 + "\ud800"})
    store.answer = saying(500, error.encode())
    publisher.pass_once()
    kept = Destination.objects.get(name=publisher.sink.name).last_error
    assert len(kept) <= 520
    assert "\x00" not in kept


def test_while_a_request_hangs_the_publisher_keeps_its_place_and_beats(store, publisher, monkeypatch):
    """T14: a slow store must not make us look dead."""
    monkeypatch.setattr("outbox.publisher.BEAT_SECONDS", 0.1)
    monkeypatch.setattr("outbox.place.PLACE_SECONDS", 1.0)
    write(new_id(), "a")
    store.pause_seconds = 3.0
    worker = threading.Thread(target=publisher.run, args=[4.0])
    worker.start()
    time.sleep(2.0)  # longer than the place lasts without being renewed
    assert Publisher(publisher.sink).run(0.1) == 0
    assert Destination.objects.filter(worker_until__gt=Now(), turned_away=1).exists()
    worker.join(20)
    assert (pending(), publisher.fenced) == (0, 0)

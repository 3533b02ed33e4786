"""T10 to T22 of the incidents: one owner per run, authority by the database clock, no work that is lost with it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from django.conf import settings
from django.db import OperationalError, connection, transaction
from django.db.models.functions import Now

from kernel_project.primitives.ids import new_id
from outbox import place, selectors
from outbox.alarms import alarms
from outbox.destination import ACKNOWLEDGED, DestinationFailed
from outbox.models import Destination, PublisherHeartbeat, Stream
from outbox.publisher import NullSink, Publisher
from tests.outbox_scene import leases_expire, numbered, pending, write

pytestmark = pytest.mark.django_db(transaction=True)


class Recording(NullSink):
    """Acknowledges everything and remembers it in order; `on_delivery` is called first."""

    name = "recording"

    def __init__(self) -> None:
        self.sent: list[tuple[str, int]] = []
        self.on_delivery = lambda: None

    def deliver(self, batch, until=float("inf")):
        self.on_delivery()
        self.sent += [(str(event.run_id), event.sequence) for event in batch]
        return {event.event_id: ACKNOWLEDGED for event in batch}


@pytest.fixture
def sink() -> Recording:
    made = Recording()
    Destination.objects.create(name=made.name)
    return made


@pytest.fixture
def publisher(sink: Recording) -> Iterator[Publisher]:
    made = Publisher(sink, "one")
    yield made
    made.close()


@pytest.fixture
def other(sink: Recording) -> Iterator[Publisher]:
    made = Publisher(sink, "other")
    yield made
    made.close()


def test_t10_while_one_publisher_sends_a_run_another_one_sends_only_other_runs(sink, publisher, other):
    first, second = new_id(), new_id()
    write(first, *numbered(3))

    def meanwhile() -> None:
        sink.on_delivery = lambda: None
        other.pass_once()

    sink.on_delivery = meanwhile
    publisher.pass_once()
    write(second, "a")
    other.pass_once()
    assert sink.sent == [(str(first), 1), (str(first), 2), (str(first), 3), (str(second), 1)]


def test_t11_an_acknowledgement_after_the_lease_changes_nothing_and_is_counted(sink, publisher):
    write(new_id(), "a")
    sink.on_delivery = leases_expire
    publisher.pass_once()
    assert (publisher.fenced, pending(), publisher.published) == (1, 1, 0)


def test_t11_nothing_is_sent_when_the_lease_leaves_no_time_for_it(sink, publisher, monkeypatch):
    monkeypatch.setattr("outbox.publisher.LEASE_SECONDS", 10.0)  # less than one request may take
    write(new_id(), "a")
    publisher.pass_once()
    assert (sink.sent, pending()) == ([], 1)


def test_t12_an_attempt_is_written_down_before_the_event_is_sent(sink, publisher):
    write(new_id(), "a")
    seen = []
    sink.on_delivery = lambda: seen.append(Stream.objects.get().attempts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(publisher, "_advance", lambda *_: (_ for _ in ()).throw(SystemExit))
        for _ in range(2):  # it dies before it acknowledges, twice
            with pytest.raises(SystemExit):
                publisher.pass_once()
            leases_expire()
    publisher._sweep_at = 0.0
    publisher.pass_once()
    assert seen == [1, 2, 3]


def test_t14_a_publisher_that_lost_its_place_stops(sink, publisher, other):
    assert place.take(sink.name, publisher.place)
    publisher._has_place = True
    Destination.objects.update(worker_until=Now() - timedelta(seconds=1))
    assert place.take(sink.name, other.place)
    publisher._beat_at = 0.0
    assert not publisher._beat()


def test_t14_what_the_loser_still_acknowledges_is_fenced(sink, publisher, other):
    run = new_id()
    write(run, "a")
    assert place.take(sink.name, publisher.place)

    def lose() -> None:
        Destination.objects.update(worker_until=Now() - timedelta(seconds=1))
        assert place.take(sink.name, other.place)

    sink.on_delivery = lose
    publisher.pass_once()
    assert (publisher.fenced, pending()) == (1, 1)


def test_t15_no_clock_of_a_process_judges_a_lease(publisher, other, monkeypatch):
    """A node whose clock is two hours ahead sees no healthy lease as expired."""
    write(new_id(), "a")
    publisher._claim()
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 7_200)
    assert other._claim()[1] == []


def test_t15_leases_are_written_and_judged_by_sql_alone():
    folder = Path(settings.BASE_DIR) / "outbox"
    for name in ("publisher.py", "place.py"):
        assert "datetime.now" not in (folder / name).read_text()
        assert "timezone.now" not in (folder / name).read_text()


def test_t16_a_claim_takes_no_more_than_its_limit_whatever_the_plan(publisher, monkeypatch):
    monkeypatch.setattr("outbox.publisher.STREAMS_PER_CLAIM", 3)
    for _ in range(20):
        write(new_id(), "a")
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_hashjoin = off")
        cursor.execute("SET LOCAL enable_mergejoin = off")
        cursor.execute("SET LOCAL enable_material = off")
        assert len(publisher._claim()[1]) == 3
    assert Stream.objects.filter(lease_token__isnull=False).count() == 3


def test_t17_a_claim_looks_at_what_is_ready_and_not_at_the_journal(publisher):
    """Its cost cannot grow with the journal, and grows with nothing but the streams of one claim."""
    from kernel_project.primitives.sql import load
    from outbox.publisher import HERE

    text = load(HERE, "claim")
    assert "outbox_event" not in text
    Stream.objects.bulk_create([Stream(run_id=new_id(), project="p", head=1, published=1) for _ in range(3_000)])
    for _ in range(5):
        write(new_id(), "a")
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("ANALYZE outbox_stream")
        parameters = {
            "hint": "1970-01-01", "streams": 100, "token": new_id(), "lease_seconds": 1, "destination": "x",
            "held_max_seconds": 1, "circuit_max_seconds": 1, "margin_seconds": 1,
        }  # fmt: skip
        cursor.execute("EXPLAIN " + text, parameters)
        plan = "\n".join(line for (line,) in cursor.fetchall())
        transaction.set_rollback(True)
    assert "stream_ready" in plan


def test_t19_a_run_that_is_being_written_to_is_passed_over_and_the_others_go_out(publisher):
    import threading

    busy, free = new_id(), new_id()
    write(busy, "a")
    write(free, "a")
    locked, go = threading.Event(), threading.Event()

    def hold() -> None:
        with transaction.atomic():
            Stream.objects.select_for_update().get(run_id=busy)
            locked.set()
            go.wait(20)
        connection.close()

    thread = threading.Thread(target=hold)
    thread.start()
    assert locked.wait(20)
    began = time.monotonic()
    publisher.drain()
    assert time.monotonic() - began < 10
    assert Stream.objects.get(run_id=free).published == 1
    go.set()
    thread.join(20)
    publisher.drain()
    assert pending() == 0


def test_t19_the_loop_outlives_a_lost_database_connection(publisher, monkeypatch):
    write(new_id(), "a")
    claim, failures = publisher._claim, iter([True, True, False])

    def claim_or_fail():
        if next(failures, False):
            raise OperationalError("the server closed the connection")
        publisher.stop()
        return claim()

    monkeypatch.setattr(publisher, "_claim", claim_or_fail)
    publisher.run(30)
    assert pending() == 0


def test_t19_an_error_of_one_round_does_not_make_the_next_one_slower(publisher, sink, monkeypatch):
    write(new_id(), "a")
    monkeypatch.setattr("outbox.place.BACKOFF_FIRST_SECONDS", 0.0)
    tries = iter([DestinationFailed("no"), None])

    def fail_once() -> None:
        if error := next(tries, None):
            raise error

    sink.on_delivery = fail_once
    publisher.pass_once()
    publisher.pass_once()
    assert pending() == 0


def test_t22_the_runs_of_a_dead_publisher_are_free_as_soon_as_its_place_is(sink, publisher, other):
    """They do not wait for their leases: a killed publisher costs as long as its place lasts."""
    write(new_id(), *numbered(3))
    assert place.take(sink.name, publisher.place)
    publisher._claim()  # and then it was killed
    Destination.objects.update(worker_until=Now() - timedelta(seconds=1))
    other.stop()
    assert place.take(sink.name, other.place)
    other.drain()
    assert pending() == 0


def test_t22_a_run_that_nobody_works_on_is_an_alarm_without_any_worker():
    write(new_id(), "a")
    Stream.objects.update(ready_at=Now() - timedelta(seconds=31))
    PublisherHeartbeat.objects.create(publisher="alive but deaf")
    lag = selectors.lag()
    assert lag.streams_unowned == 1
    assert any("no publisher works on them" in text for text in alarms(lag, selectors.recent_delivery(), None))


def test_t22_a_run_that_waits_for_its_next_attempt_is_not_called_unowned():
    write(new_id(), "a")
    later = Now() + timedelta(seconds=60)
    Stream.objects.update(ready_at=Now() - timedelta(seconds=31), next_attempt_at=later)
    assert selectors.lag().streams_unowned == 0


def test_t30_no_transaction_is_open_and_no_snapshot_held_while_events_are_sent(sink, publisher):
    write(new_id(), "a")
    seen = []

    def look() -> None:
        with connection.cursor() as cursor:  # the sender's own connection: it has none of the publisher's
            cursor.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
                " AND (state LIKE 'idle in transaction%%' OR backend_xmin IS NOT NULL)"
            )
            seen.append(cursor.fetchone()[0])
        connection.close()

    sink.on_delivery = look
    publisher.pass_once()
    assert seen == [0]

"""How fast the outbox is, beside what plain PostgreSQL can do in the same run. Used by `manage.py bench` only."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from uuid import UUID

from django.conf import settings
from django.db import close_old_connections, connection, transaction

from kernel_project.bench import Figure
from kernel_project.primitives.clock import now
from kernel_project.primitives.ids import new_id
from outbox import partitions, services
from outbox.contracts import NewEvent
from outbox.destination import EventStore
from outbox.models import Destination, Event, Stream
from outbox.publisher import NullSink, Publisher

APPEND_SECONDS = 8.0
WRITERS = 8
PUBLISH_EVENTS = 40_000
STORE_EVENTS = 20_000
EVENTS_PER_RUN = 200
LATENCY_EVENTS_PER_S = 200
LATENCY_SECONDS = 15.0
BACKLOG_SMALL = 10_000
BACKLOG_LARGE = 10_000_000
BACKLOG_ROUNDS = 200
SNAPSHOT_SECONDS = 120.0
PROJECT = "bench"


def append() -> list[Figure]:
    """Durable appends, one event and one commit each, as a settled operation makes them."""
    one, eight = _append_rate(1), _append_rate(WRITERS)
    limit_one, limit_eight = _commit_rate(1), _commit_rate(WRITERS)
    return [
        Figure("append_1_writer_per_s", one, "events/s", beside={"plain_insert_commits_per_s": limit_one}),
        Figure(
            "append_8_writers_per_s",
            eight,
            "events/s",
            at_least=4_000,
            beside={"plain_insert_commits_per_s": limit_eight},
        ),
    ]


def publish() -> list[Figure]:
    """A backlog published to nowhere, and into our event store over HTTP."""
    _fill(PUBLISH_EVENTS)
    null = _drain_rate(Publisher(NullSink()), PUBLISH_EVENTS)
    _fill(STORE_EVENTS)
    store = EventStore(settings.TEMPORALITY_URL, settings.TEMPORALITY_TOKEN)
    temporality = _drain_rate(Publisher(store), STORE_EVENTS)
    copied = _copy_rate()
    return [
        Figure("null_sink_per_s", null, "events/s", at_least=20_000, beside={"copy_rows_per_s": copied}),
        Figure("temporality_per_s", temporality, "events/s", at_least=4_000, beside={"null_sink_per_s": null}),
    ]


def latency() -> list[Figure]:
    """From the commit of an event to its acknowledgement, at a steady rate, with the publisher's own loop."""
    store = EventStore(settings.TEMPORALITY_URL, settings.TEMPORALITY_TOKEN)
    acknowledged: dict[UUID, float] = {}
    publisher = Publisher(_Noting(store, acknowledged))
    thread = threading.Thread(target=publisher.run, args=[LATENCY_SECONDS + 5])
    thread.start()
    committed = _write_steadily()
    thread.join()
    waits = sorted((acknowledged[i] - at) * 1000 for i, at in committed.items() if i in acknowledged)
    assert len(waits) == len(committed), f"{len(committed) - len(waits)} events were not acknowledged"
    return [
        Figure("p50_ms", statistics.median(waits), "ms", at_most=100),
        Figure("p95_ms", waits[int(len(waits) * 0.95)], "ms", at_most=1_000),
    ]


def backlog() -> list[Figure]:
    """Claims over a small and a big journal, and for two minutes under a snapshot that somebody holds open."""
    _grow_journal(BACKLOG_SMALL)
    small = _claim_ms(BACKLOG_ROUNDS)
    _grow_journal(BACKLOG_LARGE)
    large = _claim_ms(BACKLOG_ROUNDS)
    before, under = _under_snapshot()
    big, held = {"ms_10k": small, "ms_10m": large}, {"ms_before": before, "ms_under": under}
    return [
        Figure("claim_ratio_10m_to_10k", large / small, "ratio", at_most=1.2, beside=big),
        Figure("claim_ratio_held_snapshot", under / before, "ratio", at_most=1.2, beside=held),
    ]


class _Noting:
    """A sink that notes when each event was acknowledged."""

    def __init__(self, sink: EventStore, acknowledged: dict[UUID, float]) -> None:
        self.name, self._sink, self._acknowledged = sink.name, sink, acknowledged

    def deliver(self, batch):  # type: ignore[no-untyped-def]  # as Sink
        receipts = self._sink.deliver(batch)
        at = time.perf_counter()
        self._acknowledged.update({event.event_id: at for event in batch})
        return receipts


def _event(run: UUID, number: int) -> NewEvent:
    data = {"tool": "bench/tool", "status": "succeeded", "arguments_hash": "0" * 64, "attempt": 1}
    return NewEvent(run_id=run, project=PROJECT, type="tool.completed", subject=str(number), data=data)


def _in_parallel(writers: int, work: Callable[[float], int], seconds: float) -> float:
    """How many of `work`'s units all writers did per second; each gets the time until which to go on."""

    def one(until: float) -> int:
        try:
            return work(until)
        finally:
            close_old_connections()

    began = time.perf_counter()
    with ThreadPoolExecutor(writers) as pool:
        total = sum(pool.map(one, [time.perf_counter() + seconds] * writers))
    return total / (time.perf_counter() - began)


def _append_rate(writers: int) -> float:
    def write(until: float) -> int:
        run, count = new_id(), 0
        while time.perf_counter() < until:
            with transaction.atomic():
                services.append([_event(run, count)])
            count += 1
        return count

    return _in_parallel(writers, write, APPEND_SECONDS)


def _commit_rate(writers: int) -> float:
    """The limit: one bare row, one commit."""
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE IF NOT EXISTS bench_rows (id uuid PRIMARY KEY, body text)")

    def write(until: float) -> int:
        count = 0
        while time.perf_counter() < until:
            with connection.cursor() as cursor:
                cursor.execute("INSERT INTO bench_rows VALUES (%s, %s)", [new_id(), "x" * 600])
            count += 1
        return count

    return _in_parallel(writers, write, APPEND_SECONDS)


def _fill(events: int) -> None:
    for _ in range(events // EVENTS_PER_RUN):
        run = new_id()
        with transaction.atomic():
            services.append([_event(run, number) for number in range(EVENTS_PER_RUN)])


def _drain_rate(publisher: Publisher, events: int) -> float:
    Destination.objects.get_or_create(name=publisher.sink.name)
    began = time.perf_counter()
    done = publisher.drain()
    assert done == events, f"{done} of {events} events were published"
    return done / (time.perf_counter() - began)


def _copy_rate() -> float:
    """The limit: how fast PostgreSQL takes rows of this size at all."""
    rows = PUBLISH_EVENTS
    began = time.perf_counter()
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE IF NOT EXISTS bench_copy (id int, body text)")
        with cursor.copy("COPY bench_copy FROM STDIN") as copy:
            for number in range(rows):
                copy.write_row((number, "x" * 600))
    return rows / (time.perf_counter() - began)


def _write_steadily() -> dict[UUID, float]:
    committed = {}
    runs = [new_id() for _ in range(20)]
    began = time.perf_counter()
    for number in range(int(LATENCY_EVENTS_PER_S * LATENCY_SECONDS)):
        time.sleep(max(0.0, began + number / LATENCY_EVENTS_PER_S - time.perf_counter()))
        event = _event(runs[number % len(runs)], number)
        with transaction.atomic():
            services.append([event])
        committed[event.event_id] = time.perf_counter()
    return committed


def _grow_journal(rows: int) -> None:
    """Published events of many runs, made inside the database: their content does not matter, their number does."""
    missing = rows - Event.objects.count()
    runs = missing // 1_000
    first = partitions.floor(now() - timedelta(minutes=1)).int
    with connection.cursor() as cursor:
        cursor.execute("SET synchronous_commit = off")
        for number in range(runs):
            run = UUID(int=first + number)
            cursor.execute(
                """INSERT INTO outbox_event (event_id, run_id, sequence, type, occurred_at, envelope)
                   SELECT gen_random_uuid(), %s, n, 'bench', now(), repeat('x', 100) FROM generate_series(1, 1000) n""",
                [run],
            )
            cursor.execute(
                """INSERT INTO outbox_stream (run_id, project, head, published, attempts, last_error)
                   VALUES (%s, %s, 1000, 1000, 0, '')""",
                [run, PROJECT],
            )
        cursor.execute("SET synchronous_commit = on")
        cursor.execute("ANALYZE outbox_event")
        cursor.execute("VACUUM ANALYZE outbox_stream")


def _claim_ms(rounds: int) -> float:
    """The median time of one pass over a stream with one new event."""
    publisher, run = Publisher(NullSink()), new_id()
    Destination.objects.get_or_create(name=publisher.sink.name)
    times = []
    for number in range(rounds):
        with transaction.atomic():
            services.append([_event(run, number)])
        began = time.perf_counter()
        assert publisher.pass_once() == 1
        times.append((time.perf_counter() - began) * 1000)
    return statistics.median(times)


def _under_snapshot() -> tuple[float, float]:
    """The same before and at the end of two busy minutes under a snapshot held open."""
    before = _claim_ms(BACKLOG_ROUNDS)
    release, held = threading.Event(), threading.Event()

    def hold() -> None:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            cursor.execute("SELECT count(*) FROM outbox_destination")
            held.set()
            release.wait(SNAPSHOT_SECONDS * 2)
        close_old_connections()

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    until = time.perf_counter() + SNAPSHOT_SECONDS
    while time.perf_counter() < until:
        _claim_ms(BACKLOG_ROUNDS)
    under = _claim_ms(BACKLOG_ROUNDS)
    release.set()
    holder.join()
    assert not Stream.objects.filter(ready_at__isnull=False).exists()
    return before, under

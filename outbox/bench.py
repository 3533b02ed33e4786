"""How fast the outbox is, beside what plain PostgreSQL and a peer do in the same run. Used by `manage.py bench`."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from uuid import UUID

from django.conf import settings
from django.db import close_old_connections, connection, transaction

from kernel_project.bench import Figure
from kernel_project.primitives.clock import now
from kernel_project.primitives.ids import new_id
from outbox import bench_environment, bench_writers, partitions, services
from outbox.contracts import NewEvent
from outbox.destination import EventStore, Outgoing, Receipts, Sink, Verdict
from outbox.models import Destination, Event, Stream
from outbox.publisher import NullSink, Publisher

APPEND_SECONDS = 8.0
WRITERS = 8
PUBLISH_EVENTS = 40_000
STORE_EVENTS = 20_000
PEER_EVENTS = 5_000  # it sends and saves one by one
EVENTS_PER_RUN = 200
LATENCY_EVENTS_PER_S = 200
LATENCY_SECONDS = 15.0
LATENCY_WAIT_SECONDS = 30.0  # for the last ones
LATENCY_RUN_SECONDS_MAX = 900.0  # of the publisher, which is stopped when all is there: a busy machine writes slowly
BACKLOG_SMALL = 10_000
BACKLOG_LARGE = 10_000_000
BACKLOG_EVENTS_PER_RUN = 1_000
BACKLOG_RUNS_PER_STATEMENT = 200
BACKLOG_ROUNDS = 200
SNAPSHOT_SECONDS = 120.0
QUEUE_ROWS = 20_000  # of the plain queue that is claimed and updated
QUEUE_BATCH = 100
AUDIT_ROUNDS = 6  # each way in turn, so that a busy moment hits both
AUDIT_SECONDS = 1.5
PROJECT = "bench"
PLAIN_ROUNDS = 200
LIMIT_SECONDS = 3.0
PEER = "django_outbox_pattern_per_s"
PEER_MS = "django_outbox_pattern_ms"
COMMITS = "plain_insert_commits_per_s"
INSERT_ROW = "INSERT INTO bench_rows (id, body) VALUES (%s, %s)"


def append() -> list[Figure]:
    """Durable appends, one event and one commit each, as a settled operation makes them; each writer is a process."""
    _make_rows_table()
    one, eight = (bench_writers.rate(write_events, writers, APPEND_SECONDS) for writers in (1, WRITERS))
    limit_one, limit_eight = (bench_writers.rate(write_rows, writers, APPEND_SECONDS) for writers in (1, WRITERS))
    peer_one, why = bench_environment.rate("append", 1, APPEND_SECONDS)
    peer_eight, _ = bench_environment.rate("append", WRITERS, APPEND_SECONDS) if peer_one else ({}, "")
    absent = {PEER: why} if why else {}
    return [
        _audit_ratio(1), _audit_ratio(WRITERS),
        Figure(
            "append_1_writer_per_s", one, "events/s", absent=absent, beside={COMMITS: limit_one, **peer_one},
        ),
        Figure(
            "append_8_writers_per_s", eight, "events/s", at_least=4_000, absent=absent,
            beside={COMMITS: limit_eight, "copy_rows_per_s": _copy_rate(), **peer_eight},
        ),
    ]  # fmt: skip


def _audit_ratio(writers: int) -> Figure:
    """Events that are put on audit record in the same commit, beside equal ones that are not."""
    with_it, without = [], []
    for _ in range(AUDIT_ROUNDS):
        with_it.append(bench_writers.rate(write_events, writers, AUDIT_SECONDS))
        without.append(bench_writers.rate(write_unaudited, writers, AUDIT_SECONDS))
    audited, plain = statistics.median(with_it), statistics.median(without)
    beside = {"audited_per_s": audited, "unaudited_per_s": plain}
    return Figure(f"audited_ratio_{writers}_writers", audited / plain, "ratio", at_least=0.9, beside=beside)


def publish() -> list[Figure]:
    """A backlog published to nowhere, and into our event store over HTTP. The peer's broker takes all at once."""
    _fill(PUBLISH_EVENTS)
    null = _drain_rate(Publisher(NullSink()), PUBLISH_EVENTS)
    _fill(STORE_EVENTS)
    store = EventStore(settings.TEMPORALITY_URL, settings.TEMPORALITY_TOKEN)
    temporality = _drain_rate(Publisher(store), STORE_EVENTS)
    limits = {
        "copy_rows_per_s": _copy_rate(), COMMITS: _commit_rate(),
        "plain_claim_and_update_per_s": _claim_and_update_rate(),
    }  # fmt: skip
    peer, why = bench_environment.rate("publish", PEER_EVENTS)
    absent = {PEER: why} if why else {}
    beside = {**limits, **peer}
    return [
        Figure("null_sink_per_s", null, "events/s", at_least=20_000, beside=beside, absent=absent),
        Figure(
            "temporality_per_s", temporality, "events/s", at_least=4_000, absent=absent,
            beside={"null_sink_per_s": null, **beside},
        ),
    ]  # fmt: skip


def latency() -> list[Figure]:
    """From the commit of an event to its acknowledgement, at a steady rate, with the publisher's own loop."""
    store = EventStore(settings.TEMPORALITY_URL, settings.TEMPORALITY_TOKEN)
    acknowledged: dict[UUID, float] = {}
    publisher = Publisher(_Noting(store, acknowledged))
    thread = threading.Thread(target=publisher.run, args=[LATENCY_RUN_SECONDS_MAX])
    thread.start()
    committed = _write_steadily()
    deadline = time.perf_counter() + LATENCY_WAIT_SECONDS
    while len(acknowledged) < len(committed) and time.perf_counter() < deadline:
        time.sleep(0.1)
    publisher.stop()
    thread.join()
    waits = sorted((acknowledged[i] - at) * 1000 for i, at in committed.items() if i in acknowledged)
    assert len(waits) == len(committed), f"{len(committed) - len(waits)} events were not acknowledged"
    beside = {"events_per_s": LATENCY_EVENTS_PER_S, "p99_ms": waits[int(len(waits) * 0.99)]}
    absent = {PEER_MS: "it sends by STOMP alone, and nothing answers per message"}
    return [
        Figure(
            "p50_ms", statistics.median(waits), "ms", at_most=100, absent=absent,
            beside=beside | _plain_ms(statistics.median),
        ),
        Figure(
            "p95_ms", waits[int(len(waits) * 0.95)], "ms", at_most=1_000, absent=absent,
            beside=beside | _plain_ms(lambda times: sorted(times)[int(len(times) * 0.95)]),
        ),
    ]  # fmt: skip


def backlog() -> list[Figure]:
    """Claims over a small and a big journal, and for two minutes under a snapshot that somebody holds open."""
    _grow_journal(BACKLOG_SMALL)
    small, small_rate = _claim_ms(BACKLOG_ROUNDS), _null_rate()
    _grow_journal(BACKLOG_LARGE)
    large, large_rate = _claim_ms(BACKLOG_ROUNDS), _null_rate()
    before, under = _under_snapshot()
    plain = _plain_ms(statistics.median)
    big = {
        "ms_10k": small, "ms_10m": large, "publish_per_s_10k": small_rate, "publish_per_s_10m": large_rate,
        "plain_claim_and_update_per_s": _claim_and_update_rate(), "copy_rows_per_s": _copy_rate(), **plain,
    }  # fmt: skip
    held = {"ms_before": before, "ms_under": under, **plain}
    absent = {PEER_MS: "it keeps no journal: its table would take longer to fill than all this takes"}
    return [
        Figure("claim_ratio_10m_to_10k", large / small, "ratio", at_most=1.2, beside=big, absent=absent),
        Figure("publish_ratio_10m_to_10k", large_rate / small_rate, "ratio", at_least=0.8, beside=big, absent=absent),
        Figure("claim_ratio_held_snapshot", under / before, "ratio", at_most=1.2, beside=held, absent=absent),
    ]


class _Noting:
    """A sink that notes when each event was acknowledged."""

    def __init__(self, sink: Sink, acknowledged: dict[UUID, float]) -> None:
        self.name, self._sink, self._acknowledged = sink.name, sink, acknowledged

    def abort(self) -> None:
        self._sink.abort()

    def deliver(self, batch: Sequence[Outgoing], until: float) -> Receipts:
        receipts = self._sink.deliver(batch, until)
        at = time.perf_counter()
        self._acknowledged.update(
            {name: at for name, receipt in receipts.items() if receipt.verdict == Verdict.ACKNOWLEDGED}
        )
        return receipts


def _event(run: UUID, number: int, kind: str = "tool.completed") -> NewEvent:
    data = {"tool": "bench/tool", "status": "succeeded", "arguments_hash": "0" * 64, "attempt": 1}
    return NewEvent(run_id=run, project=PROJECT, type=kind, subject=str(number), data=data)


def write_unaudited(until: float) -> int:
    """As `write_events`, with events that are not put on audit record."""
    return write_events(until, "model.completed")


def write_events(until: float, kind: str = "tool.completed") -> int:
    """Append to a run of its own, an event and a commit at a time. Called in a process of its own."""
    run, count = new_id(), 0
    connection.ensure_connection()
    while time.perf_counter() < until:
        with transaction.atomic():
            services.append([_event(run, count, kind)])
        count += 1
    return count


def write_rows(until: float) -> int:
    """The limit: one bare row, one commit."""
    count = 0
    connection.ensure_connection()
    while time.perf_counter() < until:
        with connection.cursor() as cursor:
            cursor.execute(INSERT_ROW, [new_id(), "x" * 600])
        count += 1
    return count


def _fill(events: int) -> None:
    for _ in range(events // EVENTS_PER_RUN):
        run = new_id()
        with transaction.atomic():
            services.append([_event(run, number) for number in range(EVENTS_PER_RUN)])


def _drain_rate(publisher: Publisher, events: int) -> float:
    Destination.objects.get_or_create(name=publisher.sink.name)
    began = time.perf_counter()
    done = publisher.drain()
    took = time.perf_counter() - began
    publisher.close()
    assert done == events, f"{done} of {events} events were published"
    return done / took


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


def _claim_and_update_rate() -> float:
    """The limit: a plain table as a queue, a batch claimed with SKIP LOCKED and marked as done in one statement."""
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE TABLE bench_queue AS SELECT n AS id, false AS done, repeat('x', 600) AS body"
            " FROM generate_series(1, %s) n",
            [QUEUE_ROWS],
        )
        cursor.execute("CREATE INDEX ON bench_queue (id) WHERE NOT done")
        cursor.execute("ANALYZE bench_queue")
        began, done = time.perf_counter(), 0
        while done < QUEUE_ROWS:
            cursor.execute(
                """UPDATE bench_queue SET done = true WHERE id IN (
                       SELECT id FROM bench_queue WHERE NOT done ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED
                   ) RETURNING body""",
                [QUEUE_BATCH],
            )
            done += len(cursor.fetchall())
        rate = QUEUE_ROWS / (time.perf_counter() - began)
        cursor.execute("DROP TABLE bench_queue")
    return rate


def _make_rows_table() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE TABLE IF NOT EXISTS bench_rows"
            " (id uuid PRIMARY KEY, body text, done boolean NOT NULL DEFAULT false)"
        )


def _commit_rate() -> float:
    """The limit of one writer."""
    _make_rows_table()
    return write_rows(time.perf_counter() + LIMIT_SECONDS) / LIMIT_SECONDS


def _plain_ms(middle: Callable[[list[float]], float]) -> dict[str, float]:
    """The limit, in time: a bare row committed; one of a plain table claimed with SKIP LOCKED and marked as done."""
    _make_rows_table()
    commits, claims = [], []
    with connection.cursor() as cursor:
        cursor.execute("CREATE INDEX IF NOT EXISTS bench_rows_open ON bench_rows (id) WHERE NOT done")
        cursor.execute("UPDATE bench_rows SET done = true WHERE NOT done")
        for _ in range(PLAIN_ROUNDS):
            began = time.perf_counter()
            cursor.execute(INSERT_ROW, [new_id(), "x" * 600])
            committed = time.perf_counter()
            cursor.execute(
                """UPDATE bench_rows SET done = true WHERE id IN (
                       SELECT id FROM bench_rows WHERE NOT done ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED
                   ) RETURNING body""",
                [QUEUE_BATCH],
            )
            assert len(cursor.fetchall()) == 1
            commits.append((committed - began) * 1000)
            claims.append((time.perf_counter() - committed) * 1000)
    return {"plain_commit_ms": middle(commits), "plain_claim_and_update_ms": middle(claims)}


def _null_rate() -> float:
    """The best of three: what else the machine does makes it slower, and nothing makes it faster."""

    def once() -> float:
        _fill(STORE_EVENTS)
        return _drain_rate(Publisher(NullSink()), STORE_EVENTS)

    return max(once() for _ in range(3))


def _grow_journal(rows: int) -> None:
    """Published events of many runs, made inside the database: their content does not matter, their number does."""
    missing = (rows - Event.objects.count()) // BACKLOG_EVENTS_PER_RUN
    with connection.cursor() as cursor:
        cursor.execute("SET synchronous_commit = off")
        while missing > 0:
            runs = _older_runs(min(missing, BACKLOG_RUNS_PER_STATEMENT))
            cursor.execute(
                """INSERT INTO outbox_event (event_id, run_id, sequence, type, occurred_at, envelope)
                   SELECT gen_random_uuid(), r, n, 'bench', now(), repeat('x', 100)
                   FROM unnest(%s::uuid[]) r CROSS JOIN generate_series(1, %s) n""",
                [runs, BACKLOG_EVENTS_PER_RUN],
            )
            cursor.execute(
                """INSERT INTO outbox_stream (run_id, project, head, published, attempts, last_error)
                   SELECT r, %s, %s, %s, 0, '' FROM unnest(%s::uuid[]) r""",
                [PROJECT, BACKLOG_EVENTS_PER_RUN, BACKLOG_EVENTS_PER_RUN, runs],
            )
            missing -= len(runs)
        cursor.execute("SET synchronous_commit = on")
        cursor.execute("ANALYZE outbox_event")
        cursor.execute("VACUUM ANALYZE outbox_stream")
        cursor.execute("CHECKPOINT")  # what was written for the scene is not to be paid for by what is measured


def _older_runs(count: int) -> list[UUID]:
    """Ids of runs that began a minute ago."""
    first = partitions.floor(now() - timedelta(minutes=1)).int
    return [UUID(int=first + (new_id().int & ((1 << partitions.TIMESTAMP_SHIFT) - 1))) for _ in range(count)]


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

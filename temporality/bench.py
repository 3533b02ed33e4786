"""How fast the event store is, beside what PostgreSQL's COPY does in the same run. Used by `manage.py bench` only."""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import psycopg
from django.conf import settings

from kernel_project.bench import Figure
from kernel_project.primitives.canonical import canonical_json
from temporality.contracts import BATCH_EVENTS_MAX, EVENTS_PATH
from temporality.projection import rebuild
from temporality.projection.projector import Connection
from temporality.store import database_url

INGEST_EVENTS = 40_000
REBUILD_EVENTS = 100_000
SENDERS = 4  # connections that post at the same time: a few publishers
EVENTS_PER_RUN = 200
REQUEST_SECONDS = 60.0
SETTLE_SECONDS = 600.0  # for the live projection to catch up before it is rebuilt
POLL_SECONDS = 0.2
PROJECT = "bench"
STEPS = ("turn.started", "model.started", "model.completed", "tool.started", "tool.completed", "turn.completed")


def bench_ingest() -> list[Figure]:
    """Batches of 100 over HTTP into the running event store, as publishers send them."""
    events = sample_events(INGEST_EVENTS)
    rate = _post_all(events)
    copied = _copy_rate(events)
    return [Figure("ingest_per_s", rate, "events/s", at_least=6_000, beside={"copy_rows_per_s": copied})]


def bench_rebuild(rows: int = REBUILD_EVENTS) -> list[Figure]:
    """The projection of everything in the store, built anew beside the one that is read, and compared with it; of more
    `rows` also how the rate at that size stands to that of the first.
    """
    rate, read = _rebuilt(REBUILD_EVENTS)
    figures = [Figure("rebuild_per_s", rate, "events/s", at_least=20_000, beside={"plain_read_rows_per_s": read})]
    if rows > REBUILD_EVENTS:
        large, read = _rebuilt(rows - REBUILD_EVENTS)
        beside = {"rebuild_per_s": large, "plain_read_rows_per_s": read}
        about = f"of {rows:,} events to {REBUILD_EVENTS:,}"
        figures.append(Figure("rebuild_rate_ratio", large / rate, "", at_least=0.8, beside=beside, about=about))
    return figures


def _rebuilt(more: int) -> tuple[float, float]:
    """Add events and rebuild all that are there: events per second, and rows of them that are merely read."""
    for at in range(0, more, REBUILD_EVENTS):
        _post_all(sample_events(min(REBUILD_EVENTS, more - at)))
    with psycopg.connect(database_url(settings.DATABASES), autocommit=True) as connection:
        _settle(connection)
        started = time.perf_counter()
        found = rebuild.rebuild(connection)
        seconds = time.perf_counter() - started
        read = _read_rate(connection)
    assert found.is_equal, "the rebuilt projection differs from the live one"
    return found.events / seconds, read


def sample_events(count: int) -> list[str]:
    """The canonical texts of whole runs: turns with one model call and one tool call each."""
    texts: list[str] = []
    while len(texts) < count:
        texts += _run(min(EVENTS_PER_RUN, count - len(texts)))
    return texts


def _run(count: int) -> list[str]:
    run, cause, operation = uuid.uuid4().hex, "", ""
    texts = []
    for sequence in range(1, count + 1):
        kind = "run.started" if sequence == 1 else STEPS[(sequence - 2) % len(STEPS)]
        kind = "run.completed" if sequence == count and count > 1 else kind
        if kind in ("model.started", "tool.started"):
            operation = str(uuid.uuid4())
        event = _event(run, kind, sequence, cause, operation)
        cause = event["event_id"]
        texts.append(canonical_json(event))
    return texts


def _event(run: str, kind: str, sequence: int, cause: str, operation: str) -> dict[str, Any]:
    data: dict[str, Any] = {
        "sequence": sequence,
        "caused_by": [cause] if cause else [],
        "frame_id": run,
        "status": "ok",
    }
    if kind.startswith(("model.", "tool.")):
        data |= {"operation_id": operation, "attempt": 1, "arguments_hash": uuid.uuid4().hex * 2}
    return {
        "schema": "temporality.event/1",
        "event_id": str(uuid.uuid4()),
        "occurred_at": "2025-03-01T10:00:00.000000Z",
        "source": {"id": "bench", "integration": "bench", "version": "1"},
        "context": {"project": PROJECT, "run": run, "actor": {"id": "agent", "type": "agent"}},
        "type": kind,
        "data": data,
        "evidence": [{"ref": f"artifact://sha256/{uuid.uuid4().hex * 2}"}],
    }


def _post_all(events: Sequence[str]) -> float:
    """Each sender has whole runs and sends them in order, as a publisher does."""
    starts = range(0, len(events), BATCH_EVENTS_MAX)
    bodies = [('{"events":[' + ",".join(events[at : at + BATCH_EVENTS_MAX]) + "]}").encode() for at in starts]
    share = math.ceil(len(bodies) / SENDERS)
    shares = [bodies[start : start + share] for start in range(0, len(bodies), share)]
    started = time.perf_counter()
    with ThreadPoolExecutor(SENDERS) as pool:
        list(pool.map(_post_some, shares))
    return len(events) / (time.perf_counter() - started)


def _post_some(bodies: Sequence[bytes]) -> None:
    headers = {"Authorization": f"Bearer {settings.TEMPORALITY_TOKEN}", "Content-Type": "application/json"}
    with httpx2.Client(base_url=settings.TEMPORALITY_URL, headers=headers, timeout=REQUEST_SECONDS) as client:
        for body in bodies:
            answer = client.post(EVENTS_PATH, content=body)
            assert answer.status_code == 200, answer.text[:300]


def _copy_rate(events: Sequence[str]) -> float:
    """The same texts into a table with the same unique key and nothing else, in transactions of the same size."""
    with psycopg.connect(database_url(settings.DATABASES), autocommit=True) as connection:
        connection.execute("CREATE TEMPORARY TABLE copied (event_id text PRIMARY KEY, content text)")
        rows = [(str(uuid.uuid4()), text) for text in events]
        started = time.perf_counter()
        for at in range(0, len(rows), BATCH_EVENTS_MAX):
            with connection.cursor() as cursor, cursor.copy("COPY copied FROM STDIN") as copy:
                for row in rows[at : at + BATCH_EVENTS_MAX]:
                    copy.write_row(row)
        return len(rows) / (time.perf_counter() - started)


def _read_rate(connection: Connection) -> float:
    started = time.perf_counter()
    size = 0
    with connection.cursor().copy("COPY temporality_event (position, content) TO STDOUT") as copy:
        for chunk in copy:
            size += bytes(chunk).count(b"\n")
    return size / (time.perf_counter() - started)


def _settle(connection: Connection) -> None:
    """Wait until the live projection has read everything."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        row = connection.execute(
            "SELECT (SELECT position FROM temporality_head) - position FROM temporality_projector WHERE state = 'live'"
        ).fetchone()
        if row and row[0] == 0:
            return
        assert time.monotonic() < deadline, "the live projection does not catch up"
        time.sleep(POLL_SECONDS)

"""Storing events: every batch that arrives while another is being stored goes into the next statement together.

Never says "accepted" before the commit. Never stops for one event: what cannot be stored is answered by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import psycopg

from kernel_project.primitives.errors import Unavailable
from temporality.columns import array, json_texts, numbers
from temporality.contracts import CONFLICT_ERROR, SEQUENCE_ERROR, STORAGE_ERROR, Status
from temporality.envelope import Incoming
from temporality.sql import statement
from temporality.store import Connection, Store

logger = logging.getLogger(__name__)

STATEMENT_EVENTS_MAX = 1_000  # events of one statement, unless a single batch is larger
WAITING_EVENTS_MAX = 20_000  # events in memory that wait for the database; beyond it producers are sent away
STORE_ATTEMPTS = 2  # a second one for a connection that died while it was idle
TEXT_COLUMNS = (
    "source_id", "event_id", "project", "run", "task", "actor_id", "type", "subject_id", "occurred_at",
    "quarantine",
)  # fmt: skip
CANNOT_HOLD = "the store cannot hold this event"

Code = Literal["accepted", "repeated", "conflict", "quarantined", "storage_error", "invalid"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one event."""

    status: Status
    code: Code
    error: str = ""


ACCEPTED = Verdict("accepted", "accepted")
QUARANTINED = Verdict("accepted", "quarantined")
REPEATED = Verdict("repeated", "repeated")
CONFLICT = Verdict("rejected", "conflict", CONFLICT_ERROR)
SEQUENCE_CONFLICT = Verdict("rejected", "conflict", SEQUENCE_ERROR)
NOT_STORED = Verdict("rejected", "storage_error", STORAGE_ERROR)
INVALID = Verdict("rejected", "invalid", CANNOT_HOLD)


@dataclass(slots=True)
class _Waiting:
    events: Sequence[Incoming]
    done: asyncio.Future[list[Verdict]] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Inbox:
    """The one writer of this process. Several processes may write to one store: the head's lock orders them."""

    def __init__(self, store: Store, on_stored: Callable[[], None] = lambda: None) -> None:
        self.store = store
        self.on_stored = on_stored  # a nudge only: nothing depends on it
        self._queue: deque[_Waiting] = deque()
        self._waiting_events = 0
        self._arrived = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="inbox")

    async def stop(self) -> None:
        """Stop storing; batches that still wait are answered as not stored."""
        if self._task:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        _refuse(self._queue, Unavailable("the event store is stopping"))

    async def add(self, events: Sequence[Incoming]) -> list[Verdict]:
        """Store a batch and answer each event, in order. Raises Unavailable: then nothing is known to be stored."""
        if self._waiting_events + len(events) > WAITING_EVENTS_MAX:
            raise Unavailable("the event store has more events waiting than it takes")
        waiting = _Waiting(events)
        self._queue.append(waiting)
        self._waiting_events += len(events)
        self._arrived.set()
        return await waiting.done

    async def _run(self) -> None:
        while True:
            await self._arrived.wait()
            batches = self._take()
            try:
                await self._store(batches)
            except asyncio.CancelledError:
                _refuse(batches, Unavailable("the event store is stopping"))
                raise
            except Exception as error:
                if not isinstance(error, Unavailable):
                    logger.exception("storing %s batches failed", len(batches))
                _refuse(batches, error)

    def _take(self) -> list[_Waiting]:
        taken: list[_Waiting] = []
        events = 0
        while self._queue and (not taken or events + len(self._queue[0].events) <= STATEMENT_EVENTS_MAX):
            taken.append(self._queue.popleft())
            events += len(taken[-1].events)
        self._waiting_events -= events
        if not self._queue:
            self._arrived.clear()
        return taken

    async def _store(self, batches: Sequence[_Waiting]) -> None:
        events = [event for batch in batches for event in batch.events]
        verdicts = iter(await self._verdicts(events))
        self.on_stored()
        for batch in batches:
            mine = [next(verdicts) for _ in batch.events]
            if not batch.done.done():  # its client may have gone
                batch.done.set_result(mine)

    async def _verdicts(self, events: Sequence[Incoming]) -> list[Verdict]:
        for attempt in range(STORE_ATTEMPTS):
            try:
                async with self.store.write() as connection:
                    return await _insert(connection, events)
            except psycopg.DataError:
                return await self._apart(events)
            except Unavailable:
                if attempt + 1 == STORE_ATTEMPTS:
                    raise
        raise AssertionError("unreachable")

    async def _apart(self, events: Sequence[Incoming]) -> list[Verdict]:
        """Something in the batch cannot be stored: halve it until that is alone, so that the rest gets in."""
        if len(events) == 1:
            logger.error("the database refused the value of event %s of %s", events[0].event_id, events[0].source_id)
            return [INVALID]
        middle = len(events) // 2
        return [*await self._half(events[:middle]), *await self._half(events[middle:])]

    async def _half(self, events: Sequence[Incoming]) -> list[Verdict]:
        try:
            return await self._verdicts(events)
        except Unavailable:  # the other half may be stored already, so the batch as a whole has no one answer
            return [NOT_STORED] * len(events)


def _refuse(batches: Iterable[_Waiting], error: Exception) -> None:
    for batch in batches:
        if not batch.done.done():
            batch.done.set_exception(error)


async def _insert(connection: Connection, events: Sequence[Incoming]) -> list[Verdict]:
    cursor = await connection.execute(statement("insert_events"), columns(events))
    stored = {place - 1 for (place,) in await cursor.fetchall()}
    verdicts = [(QUARANTINED if event.quarantine else ACCEPTED) for event in events]
    known = [place for place in range(len(events)) if place not in stored]
    if known:
        for place, verdict in zip(known, await _compare(connection, [events[p] for p in known]), strict=True):
            verdicts[place] = verdict
    return verdicts


def columns(events: Sequence[Incoming]) -> dict[str, Any]:
    """The parameters of a statement that takes a batch: one for each column."""
    by_name = dict(zip(Incoming._fields, zip(*events, strict=True), strict=True))
    texts: dict[str, Any] = {name: array(by_name[name]) for name in TEXT_COLUMNS}
    return texts | {
        "count": len(events),
        "sequence": numbers(by_name["sequence"]),
        "parents": array(map(array, by_name["parents"])),
        "content": json_texts(by_name["content"]),
        "raw": json_texts(raw or "" for raw in by_name["raw"]),
    }


async def _compare(connection: Connection, events: Sequence[Incoming]) -> list[Verdict]:
    """Events that were there in some way: repeated, or a conflict that is recorded before it is answered."""
    cursor = await connection.execute(statement("compare_events"), columns(events))
    verdicts: list[Verdict] = []
    conflicts: list[tuple[str, int, Incoming]] = []
    for event, (position, equal, in_sequence) in zip(events, await cursor.fetchall(), strict=True):
        if equal:
            verdicts.append(REPEATED)
        elif position is not None:
            verdicts.append(CONFLICT)
            conflicts.append(("content", position, event))
        elif in_sequence is not None:
            verdicts.append(SEQUENCE_CONFLICT)
            conflicts.append(("sequence", in_sequence, event))
        else:  # it was deleted in this very moment
            verdicts.append(NOT_STORED)
    if conflicts:
        await _record(connection, conflicts)
    return verdicts


async def _record(connection: Connection, conflicts: Sequence[tuple[str, int, Incoming]]) -> None:
    kinds, positions, events = zip(*conflicts, strict=True)
    parameters = columns(events) | {"kind": array(kinds), "position": numbers(positions)}
    await connection.execute(statement("record_conflicts"), parameters)

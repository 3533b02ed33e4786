"""Building the projection anew beside the one that is read, comparing the two, and swapping them. Ingest goes on.

Interrupted at any moment, the next call goes on with the same shadow.
"""

from __future__ import annotations

import gc
import hashlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import psycopg

from kernel_project.primitives.errors import Conflict
from temporality import catalogue
from temporality.projection.projector import (
    STEP_BYTES,
    Connection,
    Read,
    Step,
    Window,
    advance,
    live_generation,
    read_window,
    release,
)
from temporality.sql import statement

STEP_EVENTS = 5_000  # of one transaction; more than live, because nobody waits for it
CATCH_UP_ROUNDS_MAX = 100  # tries to come near the live projection before it is stopped for the comparison
NEAR_EVENTS = 20_000  # near enough: so many events are read while the live projection stands still
DELETE_ROWS = 50_000  # of one statement
DIGEST_FETCH_ROWS = 5_000

COLLECTOR_THRESHOLDS = (
    50_000,
    50,
    50,
)  # a step makes 100,000 objects and no circles: looking for them took a third longer
LOCK_KEY = 0x7E3470  # of the advisory lock that one rebuild holds as long as its connection lives

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Rebuilt:
    """What a rebuild found. `events` were read anew; the digests are those of the old and the new projection."""

    events: int
    position: int
    digest_before: str
    digest_after: str
    swapped: bool

    @property
    def is_equal(self) -> bool:
        return self.digest_before == self.digest_after


def rebuild(connection: Connection, *, project: str = "", swap: bool = True, report: Progress | None = None) -> Rebuilt:
    """Read the inbox anew for all projects or for one, and compare; then take the new projection, if `swap`.

    The connection must be in autocommit mode. Raises Conflict if a rebuild of something else was left unfinished.
    """
    if not _row(connection, "rebuild_turn", key=LOCK_KEY)[0]:
        raise Conflict("another rebuild is running")
    _clear_retired(connection)
    generation, target = _begin(connection, project)
    with _rare_collections(), _not_waiting_for_the_disk(connection), ReadAhead(connection) as ahead:
        events = _read_until(connection, generation, project, target, report, ahead)
        for _ in range(CATCH_UP_ROUNDS_MAX):
            live = _live_position(connection)
            count = _remaining(connection, generation, project, live)
            events += _read_until(connection, generation, project, live, None, ahead)
            if count <= NEAR_EVENTS:
                break
        found = _compare_and_swap(connection, generation, project, swap)
    events += found.events
    _clear_retired(connection)
    return Rebuilt(events, found.position, found.digest_before, found.digest_after, found.swapped)


def abandon(connection: Connection) -> bool:
    """Give an unfinished rebuild up. Returns whether there was one. Raises Conflict if it is running."""
    if not _row(connection, "rebuild_turn", key=LOCK_KEY)[0]:
        raise Conflict("a rebuild is running: end it first")
    row = connection.execute(statement("rebuild_unfinished")).fetchone()
    if row:
        _retire(connection, row[0])
        _drop(connection, row[0])
    return row is not None


def digest(connection: Connection, generation: int, project: str = "") -> str:
    """One hash over everything that a generation says of a project, or of all. Equal for any order of arrival."""
    whole = hashlib.sha256()
    with connection.transaction():
        for name in ("digest_items", "digest_runs", "digest_held"):
            with connection.cursor(name=name) as cursor:
                cursor.itersize = DIGEST_FETCH_ROWS
                for (text,) in cursor.execute(statement(name), {"generation": generation, "project": project}):
                    whole.update(text.encode())
                    whole.update(b"\x1d")
    return whole.hexdigest()


def live_digest(connection: Connection, project: str = "") -> str:
    """The digest of what is read now."""
    return digest(connection, live_generation(connection), project)


@contextmanager
def _rare_collections() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(*COLLECTOR_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)


@contextmanager
def _not_waiting_for_the_disk(connection: Connection) -> Iterator[None]:
    """A crash of the server may take the last steps of a shadow away, place and all: they are done again."""
    connection.execute("SET synchronous_commit = off")
    try:
        yield
    finally:
        if not connection.broken:
            connection.execute("RESET synchronous_commit")


def _begin(connection: Connection, project: str) -> tuple[int, int]:
    parameters = {"project": project, "catalogue": catalogue.fingerprint()}
    generation, _, target, found = _row(connection, "rebuild_begin", **parameters)
    if found != project:
        raise Conflict(f"an unfinished rebuild of {found or 'all projects'} is there: finish it or abandon it first")
    return generation, target


class ReadAhead:
    """Reads the next window of the inbox, on a connection of its own, while the last one is worked on."""

    def __init__(self, connection: Connection) -> None:
        self._connection = psycopg.connect(
            connection.info.dsn, password=connection.info.password or None, autocommit=True
        )
        self._thread = ThreadPoolExecutor(1)
        self._begun: tuple[Window, Future[list[tuple[Any, ...]]]] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(cancel_futures=True)
        self._connection.close()

    def __call__(self, window: Window) -> list[tuple[Any, ...]]:
        begun, self._begun = self._begun, None
        rows = begun[1].result() if begun and begun[0] == window else self._thread.submit(self._read, window).result()
        if len(rows) == window["limit"]:
            following = {**window, "after": rows[-1][0]}
            self._begun = following, self._thread.submit(self._read, following)
        return rows

    def _read(self, window: Window) -> list[tuple[Any, ...]]:
        with self._connection.transaction():
            self._connection.execute(statement("project_plan"))
            return read_window(self._connection, window)


def _read_until(
    connection: Connection,
    generation: int,
    project: str,
    upto: int,
    report: Progress | None,
    read: Read | None = None,
) -> int:
    total = _remaining(connection, generation, project, upto) if report else 0
    done = 0
    while True:
        step = _step(connection, generation, upto, read)
        done += step.events
        if report:
            report(done, total)
        if not step.more:
            return done


def _step(connection: Connection, generation: int, upto: int, read: Read | None) -> Step:
    """One step, of half the size after each timeout. Raises QueryCanceled if a single event takes too long."""
    events_max, bytes_max = STEP_EVENTS, STEP_BYTES
    while True:
        try:
            return advance(connection, generation, upto=upto, events_max=events_max, bytes_max=bytes_max, read=read)
        except psycopg.errors.QueryCanceled:
            if events_max == 1:
                raise
        events_max, bytes_max = events_max // 2, bytes_max // 2


def _remaining(connection: Connection, generation: int, project: str, upto: int) -> int:
    after = _row(connection, "rebuild_position", generation=generation)[0]
    return int(_row(connection, "rebuild_count", after=after, upto=upto, project=project)[0])


def _live_position(connection: Connection) -> int:
    return int(_row(connection, "read_behind")[1])


def _compare_and_swap(connection: Connection, generation: int, project: str, swap: bool) -> Rebuilt:
    with connection.transaction():
        connection.execute("SET LOCAL synchronous_commit TO DEFAULT")  # from here on it is read
        old, position = _row(connection, "rebuild_lock_live")
        position = max(position, _row(connection, "rebuild_position", generation=generation)[0])
        _read_until(connection, old, "", position, None)  # the live one may have been the slower of the two
        events = _read_until(connection, generation, project, position, None)
        if project:
            _settle_foreign(connection, generation, project, position)
        if _row(connection, "rebuild_position", generation=generation)[0] != position:
            raise Conflict("somebody else moves this rebuild: nothing was changed")
        before = digest(connection, old, project)
        after = digest(connection, generation, project)
        if swap and project:
            names = {"old": old, "new": generation, "project": project}
            for name in ("swap_project", *(f"swap_project_{t}" for t in ("items", "progress", "pending", "edges"))):
                connection.execute(statement(name), names)
        elif swap:
            connection.execute(statement("swap_live"), {"old": old})
            connection.execute(statement("swap_new"), {"new": generation})
        if project or not swap:
            _retire(connection, generation)  # here already: a killed cleanup leaves nothing to go on with
    return Rebuilt(events, position, before, after, swap)


def _settle_foreign(connection: Connection, generation: int, project: str, position: int) -> None:
    rows = connection.execute(statement("rebuild_foreign"), {"generation": generation, "upto": position}).fetchall()
    if rows:
        release(connection, generation, {row[0] for row in rows})
        _read_until(connection, generation, project, position, None)


def _retire(connection: Connection, generation: int) -> None:
    connection.execute(statement("rebuild_retire"), {"generation": generation})


def _clear_retired(connection: Connection) -> None:
    for (generation,) in connection.execute(statement("retired_generations")).fetchall():
        _drop(connection, generation)


def _drop(connection: Connection, generation: int) -> None:
    while _row(connection, "clear_generation", generation=generation, limit=DELETE_ROWS)[0]:
        pass
    connection.execute(statement("drop_generation"), {"generation": generation})


def _row(connection: Connection, name: str, **parameters: Any) -> tuple[Any, ...]:
    row = connection.execute(statement(name), parameters).fetchone()
    if row is None:
        raise LookupError(f"{name} found nothing: are the migrations applied?")
    return row

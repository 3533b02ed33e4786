"""Moves one generation of the projection along the inbox: a batch, its consequences and the new position in one commit.

Killed at any moment, it goes on where the last commit left it. One event that cannot be interpreted holds back only
itself and what depends on it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

import psycopg
from pydantic_core import from_json

from temporality import catalogue
from temporality.canonical_form import canonical_text
from temporality.columns import array, flags, json_texts, numbers
from temporality.envelope import MALFORMED
from temporality.projection.circles import circles
from temporality.projection.folds import (
    FOLDED_TYPES,
    Change,
    Fact,
    Registers,
    Subject,
    changes_of,
    merge,
    status_of,
    subject_of,
)
from temporality.sql import statement

logger = logging.getLogger(__name__)

BATCH_EVENTS = 2_000  # of one transaction: long enough to be cheap, short enough to be seen at once
STEP_BYTES = 16 * 1024 * 1024  # of the contents of one transaction, of what arrived and of what was released each
READY_EVENTS_MAX = 1_000  # released events of one transaction
AWAITED_MAX = 1_000  # awaited parents that are compared in memory; of more, the database is asked
QUARANTINE_PAGE = 1_000  # events judged anew at a time
CIRCLE_NODES_MAX = (
    10_000  # events among which a circle is looked for; a longer one stays waiting, and is alarmed by age
)
POSITION_MAX = 2**63 - 1

FOLDED_NAMES = array(sorted(FOLDED_TYPES))
LIVE_GENERATION = statement("project_live")
Connection = psycopg.Connection[tuple[Any, ...]]


Window = Mapping[str, Any]  # the parameters of project_read
Read = Callable[[Window], list[tuple[Any, ...]]]


class Step(NamedTuple):
    """What one transaction did. `more` says that there is something left to do at once."""

    events: int
    position: int
    more: bool


class Held(NamedTuple):
    """An event that is not applied now."""

    fact: Fact
    state: str
    reason: str


@dataclass(slots=True)
class _Batch:
    """One transaction's work in memory."""

    generation: int
    changes: list[Change] = field(default_factory=list)
    held: list[Held] = field(default_factory=list)
    edges: list[tuple[int, str, str]] = field(default_factory=list)
    seen: dict[tuple[str, str], tuple[str, bool]] = field(default_factory=dict)  # key -> (project, applied)


def live_generation(connection: Connection) -> int:
    """The generation that is read."""
    row = connection.execute(LIVE_GENERATION).fetchone()
    if row is None:
        raise LookupError("the event store has no live projection: are the migrations applied?")
    return int(row[0])


def advance(
    connection: Connection,
    generation: int,
    *,
    upto: int = POSITION_MAX,
    events_max: int = BATCH_EVENTS,
    bytes_max: int = STEP_BYTES,
    read: Read | None = None,
) -> Step:
    """Apply what was released, then the next events up to a position. One transaction of its own. `read` reads the
    inbox instead of this connection.

    Does nothing if another projector has the turn.
    """
    with connection.transaction():
        connection.execute(statement("project_plan"))
        turn = connection.execute(statement("project_lock"), {"generation": generation}).fetchone()
        if turn is None:
            return Step(0, 0, more=False)
        position, project, known, head = turn
        upto = min(upto, head)
        if known != catalogue.fingerprint():
            _judge_quarantine(connection, generation)
        batch = _Batch(generation)
        released = _apply_released(connection, batch, min(events_max, READY_EVENTS_MAX), bytes_max)
        window = {"after": position, "upto": upto, "project": project, "limit": events_max, "bytes_max": bytes_max}
        rows = read(window) if read else read_window(connection, window)
        arrived = [Fact.of(row) for row in rows]
        _interpret(connection, batch, arrived, position)
        reached = arrived[-1].position if arrived else position
        _write(connection, batch, released, arrived, reached)
        full = len(rows) == events_max or any(row[13] > len(rows) for row in rows[:1])
        if not full:
            reached = max(reached, upto)  # what lies between belongs to other projects, or was never taken
        if (reached, catalogue.fingerprint()) != (position, known):
            marks = {"generation": generation, "position": reached, "catalogue": catalogue.fingerprint()}
            connection.execute(statement("project_advance"), marks)
        more = full or bool(_scalar(connection, "project_has_ready", generation=generation))
        return Step(len(released) + len(arrived), reached, more)


def read_window(connection: Connection, window: Window) -> list[tuple[Any, ...]]:
    """The next events of the inbox. They never change, so it does not matter when they are read."""
    return _rows(connection, "project_read", folded=FOLDED_NAMES, **window)


def _facts(connection: Connection, name: str, **parameters: Any) -> list[Fact]:
    return [Fact.of(row) for row in _rows(connection, name, **parameters)]


def _rows(connection: Connection, name: str, **parameters: Any) -> list[tuple[Any, ...]]:
    return connection.execute(statement(name), parameters).fetchall()


def _apply_released(connection: Connection, batch: _Batch, events_max: int, bytes_max: int) -> list[Fact]:
    """Apply what waits for nothing any more, and in turn what waited only for that. Returns what was taken up."""
    parameters = {"generation": batch.generation, "limit": events_max, "bytes_max": bytes_max}
    rows = connection.execute(statement("project_ready"), parameters).fetchall()
    waiting = [(Fact.of(row), {(row[1], parent) for parent in row[13]}) for row in rows]
    taken: list[Fact] = []
    while True:
        rest = []
        for fact, parents in waiting:
            if all(batch.seen.get(parent, ("", False))[1] for parent in parents):
                _apply(batch, fact)
                taken.append(fact)
            else:
                rest.append((fact, parents))
        if len(rest) == len(waiting):
            return taken
        waiting = rest


def _interpret(connection: Connection, batch: _Batch, arrived: Sequence[Fact], position: int) -> None:
    """Decide for each new event whether it is applied, and what it changes."""
    known = _parents(connection, batch, arrived)
    for fact in arrived:
        # what could be interpreted when it arrived still can: types only grow within a major version
        reason = catalogue.quarantine_reason(fact.type, dict(fact.data)) if fact.quarantine else ""
        waits_for = _unsatisfied(batch, fact, known, position) if fact.parents else frozenset()
        if reason:
            _hold(batch, fact, "quarantined", reason)
        elif "missing" in waits_for:
            _hold(batch, fact, "waiting", "a parent has not arrived")
        elif "unapplied" in waits_for:
            _hold(batch, fact, "blocked", "blocked by a parent that is not applied")
        else:
            _apply(batch, fact)


def _apply(batch: _Batch, fact: Fact) -> None:
    try:
        batch.changes += changes_of(fact)
    except Exception as error:
        logger.exception("event %s of %s cannot be interpreted", fact.event_id, fact.source_id)
        _hold(batch, fact, "quarantined", f"interpreting it failed: {type(error).__name__}")
        return
    batch.seen[fact.source_id, fact.event_id] = (fact.project, True)


def _hold(batch: _Batch, fact: Fact, state: str, reason: str) -> None:
    batch.held.append(Held(fact, state, reason))
    batch.seen[fact.source_id, fact.event_id] = (fact.project, False)


Known = dict[tuple[str, str], tuple[int, str, bool]]


def _parents(connection: Connection, batch: _Batch, facts: Sequence[Fact]) -> Known:
    """Where the parents stand that are not in this batch: position, project, applied."""
    mine = {(fact.source_id, fact.event_id) for fact in facts}
    wanted = {(fact.source_id, parent) for fact in facts for parent in fact.parents} - mine - batch.seen.keys()
    if not wanted:
        return {}
    columns = {"source_id": array(key[0] for key in wanted), "event_id": array(key[1] for key in wanted)}
    rows = connection.execute(statement("project_parents"), {"generation": batch.generation, **columns}).fetchall()
    return {(source, event): (position, project, applied) for source, event, position, project, applied in rows}


def _unsatisfied(batch: _Batch, fact: Fact, known: Known, position: int) -> set[str]:
    """The states of the edges that are not satisfied; they are written down with the batch."""
    states: set[str] = set()
    for parent in fact.parents:
        if batch.seen.get((fact.source_id, parent)) == (fact.project, True) and parent != fact.event_id:
            continue
        state = _edge_state(batch, fact, parent, known, position)
        if state:
            states.add(state)
            batch.edges.append((fact.position, parent, state))
    return states


def _edge_state(batch: _Batch, fact: Fact, parent: str, known: Known, position: int) -> str:
    if parent == MALFORMED:
        return "malformed"
    if parent == fact.event_id:
        return "self"
    key = (fact.source_id, parent)
    if key in batch.seen:
        project, applied = batch.seen[key]
    elif key in known:
        stands_at, project, applied = known[key]
        if stands_at > position:
            return "missing"  # it has arrived, but this generation has not read so far
    else:
        return "missing"
    if project != fact.project:
        return "foreign_project"
    return "" if applied else "unapplied"


def _write(
    connection: Connection, batch: _Batch, released: Sequence[Fact], arrived: Sequence[Fact], reached: int
) -> None:
    newest = max((fact.received_at for fact in (*released, *arrived)), default=None)
    if batch.changes:
        _write_items(connection, batch, newest)
    if arrived:
        _write_progress(connection, batch.generation, arrived, newest, reached)
    held = {entry.fact.position for entry in batch.held}
    done = [fact.position for fact in released if fact.position not in held]
    if done:
        parameters = {"generation": batch.generation, "position": numbers(done)}
        connection.execute(statement("project_forget"), parameters)
    if batch.held:
        _write_held(connection, batch)
    if batch.edges:
        _write_edges(connection, batch)
    _land(connection, batch)


def _write_items(connection: Connection, batch: _Batch, changed_at: datetime | None) -> None:
    items: dict[Subject, Registers] = {change.subject: {} for change in batch.changes}
    keys = _subject_columns(items)
    rows = connection.execute(statement("project_items"), {"generation": batch.generation, **keys}).fetchall()
    known = {Subject(*row[:4]): from_json(row[4]) for row in rows}
    items |= known
    for change in batch.changes:
        merge(items[change.subject], change)
    for name, subjects in (("project_add_items", items.keys() - known.keys()), ("project_write_items", known.keys())):
        if subjects:
            parameters = {"generation": batch.generation, "changed_at": changed_at}
            connection.execute(statement(name), parameters | _item_columns(items, sorted(subjects)))


def _item_columns(items: Mapping[Subject, Registers], subjects: Sequence[Subject]) -> dict[str, str]:
    """Sorted by key, which index pages like."""
    registers = [items[subject] for subject in subjects]
    return _subject_columns(subjects) | {
        "status": array(map(status_of, (subject.kind for subject in subjects), registers)),
        "run": array(map(_run_of, subjects, registers)),
        "registers": json_texts(map(canonical_text, registers)),
    }


def _subject_columns(subjects: Iterable[Subject]) -> dict[str, str]:
    project, kind, source_id, key = zip(*subjects, strict=True)
    return {"project": array(project), "kind": array(kind), "source_id": array(source_id), "key": array(key)}


def _run_of(subject: Subject, registers: Registers) -> str:
    return subject.key if subject.kind == "run" else str(registers.get("run", [None, ""])[1])


def _write_progress(
    connection: Connection, generation: int, facts: Sequence[Fact], received_at: datetime | None, reached: int
) -> None:
    runs: dict[tuple[str, str, str], list[int]] = {}
    unnumbered: dict[tuple[str, str, str], int] = {}
    for fact in facts:
        if fact.run:
            key = (fact.project, fact.source_id, fact.run)
            runs.setdefault(key, [])
            if fact.sequence is None:
                unnumbered[key] = unnumbered.get(key, 0) + 1
            else:
                runs[key].append(fact.sequence)
    if not runs:
        return
    project, source_id, run = zip(*runs, strict=True)
    columns = {
        "project": array(project),
        "source_id": array(source_id),
        "run": array(run),
        "count": numbers([len(sequences) for sequences in runs.values()]),
        "highest": numbers([max(sequences, default=0) for sequences in runs.values()]),
        "unnumbered": numbers([unnumbered.get(key, 0) for key in runs]),
        "sequences": array(numbers(sequences) for sequences in runs.values()),
    }
    parameters = {"generation": generation, "received_at": received_at, "upto": reached, **columns}
    connection.execute(statement("project_progress"), parameters)
    connection.execute(statement("project_contiguous"), parameters)


def _write_held(connection: Connection, batch: _Batch) -> None:
    subjects = [
        subject_of(fact.project, fact.source_id, fact.run, fact.type, fact.subject_id) for fact, _, _ in batch.held
    ]
    columns = {
        "position": numbers([entry.fact.position for entry in batch.held]),
        "kind": array(subject.kind if subject else "" for subject in subjects),
        "key": array(subject.key if subject else "" for subject in subjects),
        "state": array(entry.state for entry in batch.held),
        "reason": array(entry.reason for entry in batch.held),
    }
    connection.execute(statement("project_hold"), {"generation": batch.generation, **columns})


def _write_edges(connection: Connection, batch: _Batch) -> None:
    position, parent, state = zip(*batch.edges, strict=True)
    columns = {"position": numbers(position), "parent_event_id": array(parent), "state": array(state)}
    connection.execute(statement("project_edges"), {"generation": batch.generation, **columns})


def _land(connection: Connection, batch: _Batch) -> None:
    """Settle the edges that lead to the events of this batch, and release what waits for nothing any more."""
    landed = _awaited(connection, batch)
    if not landed:
        return
    keys = {
        "source_id": array(key[0] for key in landed),
        "event_id": array(key[1] for key in landed),
        "project": array(batch.seen[key][0] for key in landed),
        "applied": flags(batch.seen[key][1] for key in landed),
    }
    changed = connection.execute(statement("project_land"), {"generation": batch.generation, **keys}).fetchall()
    release(connection, batch.generation, {position for position, *_ in changed})
    _break_circles(connection, batch.generation, {(source, event) for _, source, event, may in changed if may})


def _awaited(connection: Connection, batch: _Batch) -> list[tuple[str, str]]:
    """Those events of the batch that others wait for. Nearly always nothing waits, and little is asked."""
    parameters = {"generation": batch.generation, "limit": AWAITED_MAX}
    awaited = connection.execute(statement("project_awaited"), parameters).fetchall()
    if len(awaited) == AWAITED_MAX:
        return list(batch.seen)
    return list(batch.seen.keys() & {(source_id, event_id) for source_id, event_id in awaited})


def release(connection: Connection, generation: int, positions: Iterable[int]) -> None:
    """Say anew what these events wait for."""
    numbered = list(positions)
    if numbered:
        parameters = {"generation": generation, "position": numbers(numbered)}
        connection.execute(statement("project_release"), parameters)


def _break_circles(connection: Connection, generation: int, parents: set[tuple[str, str]]) -> None:
    """A circle closes when a parent arrives after its child and waits itself: only from those it is looked for."""
    if not parents:
        return
    keys = {"source_id": array(key[0] for key in parents), "event_id": array(key[1] for key in parents)}
    parameters = {"generation": generation, "limit": CIRCLE_NODES_MAX, **keys}
    among: list[tuple[int, int]] = connection.execute(statement("project_ancestors"), parameters).fetchall()
    members = [(position, min(circle)) for circle in circles(among) for position in circle]
    if members:
        position, circle = zip(*members, strict=True)
        columns = {"position": numbers(position), "circle": numbers(circle)}
        connection.execute(statement("project_circle"), {"generation": generation, **columns})
        release(connection, generation, position)


def _judge_quarantine(connection: Connection, generation: int) -> None:
    """The catalogue has changed: what it explains now is released, oldest first."""
    after = 0
    while True:
        page = _facts(connection, "project_quarantined", generation=generation, after=after, limit=QUARANTINE_PAGE)
        freed = [fact.position for fact in page if not catalogue.quarantine_reason(fact.type, dict(fact.data))]
        if freed:
            parameters = {"generation": generation, "position": numbers(freed)}
            connection.execute(statement("project_unquarantine"), parameters)
            release(connection, generation, freed)
        if len(page) < QUARANTINE_PAGE:
            return
        after = page[-1].position


def _scalar(connection: Connection, name: str, **parameters: Any) -> Any:
    row = connection.execute(statement(name), parameters).fetchone()
    return row[0] if row else None

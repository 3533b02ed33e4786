"""What the projection answers to readers. Each answer says how far the projection has read, so that lag shows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from pydantic_core import from_json

from kernel_project.primitives.errors import NotFound
from temporality.catalogue import KNOWLEDGE_TYPES
from temporality.contracts import PROGRESS_RUNS_MAX, format_time
from temporality.projection.folds import (
    APPROVAL_STATUS,
    OPERATION_STATUS,
    PROBED,
    RUN_STATUS,
    UNPROPOSED,
    Fact,
    Registers,
    fold,
    in_causal_order,
    status_of,
)
from temporality.query import BadQuery, Query, read_cursor, read_mark_time, write_cursor
from temporality.sql import statement
from temporality.store import Connection, Store
from temporality.tokens import Grant

FACTS_MAX = 50_000  # events that one reading as of a time may fold
SOURCES_MAX = 100  # of one run
WAITING_ALARM_SECONDS = 3600.0  # an event that waits longer for its parent is an alarm: the parent was never sent
HELD_SHOWN_MAX = 20  # events that are held back from one item
TYPES_OF = {
    "run": list(RUN_STATUS),
    "operation": [*OPERATION_STATUS, PROBED],
    "approval": list(APPROVAL_STATUS),
    "knowledge": list(KNOWLEDGE_TYPES),
}
WAITING_EVENTS_ALARM = 100_000  # events held back in one state: nothing is thrown away, but somebody must look
LISTED_STATES = ("waiting", "blocked", "ready")


class When(NamedTuple):
    """Two times to look at: what had happened by `as_of`, of what had arrived by `known_at`. None: no limit."""

    as_of: datetime | None
    known_at: datetime | None

    @classmethod
    def of(cls, query: Query, name: str = "as_of") -> When:
        return cls(query.time(name), query.time("known_at"))

    @property
    def is_past(self) -> bool:
        return self.as_of is not None or self.known_at is not None


Found = tuple[str, str, Registers, list[str]]  # source, key, registers, what is held back


async def run_state(store: Store, grant: Grant, query: Query) -> str:
    """How a run stands, now, or `at` a time of happening as `known_at` a time. Raises NotFound for what never came."""
    run, when = query.needed("run"), When.of(query, "at")
    named = {"project": _project(grant, query), "run": run}
    async with store.read() as connection:
        if when.is_past:
            rows = await _rows(connection, "read_run_then", **named, **when._asdict(), limit=SOURCES_MAX)
        else:
            rows = await _rows(connection, "read_run", **named, limit=SOURCES_MAX)
        if not rows and not (await _rows(connection, "read_run_exists", **named))[0][0]:
            raise NotFound("nothing of this run has arrived")
        sources = [_run_source(row) for row in rows]
        if when.is_past:
            await _as_of(connection, sources, named, when)
        answer = {**named, "status": _overall(sources), "sources": sources, "projection": await _behind(connection)}
    return json.dumps(answer)


def _run_source(row: Sequence[Any]) -> dict[str, Any]:
    source_id, status, registers, count, highest, contiguous, unnumbered, last_received_at, held_back = row
    held = json.loads(registers) if registers else {}
    return {
        "source_id": source_id,
        "status": status,
        **_spread(held),
        "received": {"count": count, "highest": highest, "contiguous": contiguous, "unnumbered": unnumbered},
        "last_received_at": format_time(last_received_at),
        "held_back": held_back,
        "incomplete": held_back > 0 or contiguous < highest,
    }


async def _as_of(connection: Connection, sources: list[dict[str, Any]], named: Mapping[str, str], when: When) -> None:
    """Add the state of the time: folded again from the events that count then."""
    then = await _then(connection, named["project"], "run", when, run=named["run"])
    items = {source_id: registers for source_id, _, registers, _ in then}
    for source in sources:
        registers = items.get(source["source_id"], {})
        source |= {"status": status_of("run", registers), **_spread(registers)}


def _overall(sources: Sequence[Mapping[str, Any]]) -> str:
    known = sorted({source["status"] for source in sources} - {"unknown"})
    return known[0] if len(known) == 1 else "contradictory" if known else "unknown"


def _spread(registers: Registers) -> dict[str, Any]:
    """The registers as members, and beside them the events that made each."""
    values: dict[str, Any] = {}
    made_by: dict[str, str] = {}
    for name, held in registers.items():
        if isinstance(held, list) and len(held) == 2 and isinstance(held[0], list):
            made_by[name] = held[0][-1]
            if name == "status":
                values |= {key: value for key, value in held[1].items() if key != "status"}
            else:
                values[name] = held[1]
    return values | {"events": made_by}


async def knowledge(store: Store, grant: Grant, query: Query) -> str:
    """The knowledge items of a project, now or as of a time of happening and a time of knowing."""
    project, key, when, limit = _project(grant, query), query.text("knowledge_id"), When.of(query), query.limit()
    after = read_cursor(cursor, str)[0] if (cursor := query.text("cursor")) else ""
    async with store.read() as connection:
        if when.is_past:
            found = await _then(connection, project, "knowledge", when, after=("", after), key=key)
        else:
            found = await _now(connection, project, "knowledge", limit + 1, key=key, after=("", after))
        behind = await _behind(connection)
    page = [
        _knowledge_item(name, registers, held_back)
        for _, name, registers, held_back in found[:limit]
        if status_of("knowledge", registers) != UNPROPOSED
    ]
    next_cursor = write_cursor(found[limit - 1][1]) if len(found) > limit else ""
    return json.dumps({"items": page, "count": len(page), "next_cursor": next_cursor, "projection": behind})


def _knowledge_item(key: str, registers: Registers, held_back: Sequence[str]) -> dict[str, Any]:
    order, proposition = registers["proposition"]
    history = [
        {"verb": verb, "occurred_at": place[0], "source_id": place[1], "event_id": place[2]}
        for place, verb, _ in in_causal_order(registers.get("history", []))
    ]
    links = [
        {"relation": relation, "target_id": target, "source_id": source, "event_id": event}
        for relation, target, source, event in registers.get("links", [])
    ]
    return {
        "knowledge_id": key,
        "state": status_of("knowledge", registers),
        "proposition": proposition,
        "proposed_by": {"source_id": order[1], "event_id": order[2]},
        "other_propositions": len(registers.get("propositions", [])) - 1,
        "uses": registers.get("uses", 0),
        "promoted": registers["promoted"][1] if "promoted" in registers else None,
        "links": links,
        "history": history,
        "changes": registers.get("changes", 0),
        "incomplete": bool(held_back),
        "held_back": list(held_back),
    }


async def operations(store: Store, grant: Grant, query: Query) -> str:
    """Operations, by state or run or id, each with the events that made it; now, or as of two times."""
    return await _list(store, grant, query, "operation")


async def approvals(store: Store, grant: Grant, query: Query) -> str:
    """Approvals, by state or run or operation, each with the events that made it; now, or as of two times."""
    return await _list(store, grant, query, "approval")


async def _list(store: Store, grant: Grant, query: Query, kind: str) -> str:
    project, limit, when = _project(grant, query), query.limit(), When.of(query)
    filters = {"status": query.text("status"), "run": query.text("run"), "key": query.text("operation_id")}
    after = read_cursor(cursor, str, str) if (cursor := query.text("cursor")) else None
    async with store.read() as connection:
        if when.is_past:
            found = await _then(connection, project, kind, when, after=after, **filters)
        else:
            found = await _now(connection, project, kind, limit + 1, after=after, **filters)
        behind = await _behind(connection)
    items = [_item(kind, *entry) for entry in found[:limit]]
    next_cursor = write_cursor(*found[limit - 1][:2]) if len(found) > limit else ""
    return json.dumps({f"{kind}s": items, "count": len(items), "next_cursor": next_cursor, "projection": behind})


def _item(kind: str, source_id: str, key: str, registers: Registers, held_back: Sequence[str]) -> dict[str, Any]:
    run = registers.get("run", [None, ""])[1]
    return (
        {"source_id": source_id, "operation_id": key, "status": status_of(kind, registers), "run": run}
        | _spread({name: held for name, held in registers.items() if name != "run"})
        | {"incomplete": bool(held_back), "held_back": list(held_back)}
    )


async def progress(store: Store, grant: Grant, query: Query) -> str:
    """What has been received of up to PROGRESS_RUNS_MAX runs of one source, in the order asked."""
    project, source_id = _project(grant, query), query.needed("source_id")
    runs = query.texts("run", PROGRESS_RUNS_MAX)
    if not runs:
        raise BadQuery("run is required")
    async with store.read() as connection:
        rows = await _rows(connection, "read_progress", project=project, source_id=source_id, runs=runs)
        behind = await _behind(connection)
    found = [
        {"source_id": source_id, "run": run, "contiguous": contiguous, "highest": highest, "count": count}
        for run, contiguous, highest, count in rows
    ]
    return json.dumps({"runs": found, "projection": behind})


async def timeline(store: Store, grant: Grant, query: Query) -> str:
    """A run's events in their sequence, each with what the projection made of it."""
    named = {"project": _project(grant, query), "run": query.needed("run"), "source_id": query.text("source_id")}
    start = [0, "0001-01-01T00:00:00Z", "", ""]
    after = _timeline_place(cursor) if (cursor := query.text("cursor")) else start
    limit = query.limit()
    names = ("after_sequence", "after_occurred_at", "after_source_id", "after_event_id")
    async with store.read() as connection:
        marks = dict(zip(names, after, strict=True))
        rows = await _rows(connection, "read_timeline", **named, **marks, limit=limit + 1)
        behind = await _behind(connection)
    events = ",".join(
        f'{{"projected":"{state}","event":{content[:-1]},"received_at":"{format_time(received_at)}"}}}}'
        for content, received_at, state, *_ in rows[:limit]
    )
    next_cursor = write_cursor(*_timeline_mark(rows[limit - 1])) if len(rows) > limit else ""
    members = f'"count":{len(rows[:limit])},"next_cursor":"{next_cursor}","projection":{json.dumps(behind)}'
    return f'{{"events":[{events}],{members}}}'


def _timeline_place(cursor: str) -> list[Any]:
    sequence, occurred_at, source_id, event_id = read_cursor(cursor, int, str, str, str)
    return [sequence, read_mark_time(occurred_at), source_id, event_id]


def _timeline_mark(row: Sequence[Any]) -> tuple[int, str, str, str]:
    _, _, _, sequence, occurred_at, source_id, event_id = row
    return sequence, format_time(occurred_at), source_id, event_id


async def gaps(store: Store, grant: Grant, query: Query) -> str:
    """Runs with missing sequences: the first hole of each."""
    names = ("source_id", "run", "contiguous", "highest", "count", "last_received_at", "missing_from", "missing_to")
    return await _table(store, grant, query, "read_gaps", "gaps", names, {"source_id": str, "run": str})


async def conflicts(store: Store, grant: Grant, query: Query) -> str:
    """Refused second versions, each beside the first; `kept` is null if that is of a project the token may not read."""
    names = ("kind", "source_id", "event_id", "run", "first_seen_at", "last_seen_at", "times_seen", "refused", "kept")
    readable = grant.readable(None)
    return await _table(store, grant, query, "read_conflicts", "conflicts", names, {"id": int}, readable=readable)


PENDING = ("source_id", "event_id", "type", "run", "kind", "key", "state", "reason", "received_at", "edges")
BY_POSITION = {"position": int}


async def quarantine(store: Store, grant: Grant, query: Query) -> str:
    """Events whose meaning is not known: stored, not applied."""
    states = ["quarantined"]
    return await _table(store, grant, query, "read_pending", "quarantine", PENDING, BY_POSITION, states=states)


async def unresolved(store: Store, grant: Grant, query: Query) -> str:
    """Events that wait for a parent."""
    states = list(LISTED_STATES)
    return await _table(store, grant, query, "read_pending", "unresolved", PENDING, BY_POSITION, states=states)


async def unresolvable(store: Store, grant: Grant, query: Query) -> str:
    """Causal edges that can never be satisfied, with the reason; nobody waits for them."""
    names = ("source_id", "event_id", "parent_event_id", "reason")
    marks = {"position": int, "parent": str}
    return await _table(store, grant, query, "read_unresolvable", "unresolvable", names, marks)


async def lag(store: Store, grant: Grant, query: Query) -> str:
    """How far the projection is behind, and how much is held back in what the token may read."""
    projects = grant.readable(query.text("project"))
    single = projects[0] if projects is not None and len(projects) == 1 else None
    scope = {"project": single, "projects": None if single else projects}
    async with store.read() as connection:
        head, position, now, unread, oldest, held_back = (await _rows(connection, "read_lag", **scope))[0]
    age = (now - oldest).total_seconds() if oldest else 0.0
    oldest_allowed = now - timedelta(seconds=WAITING_ALARM_SECONDS)
    since = {state: datetime.fromisoformat(members["oldest_received_at"]) for state, members in held_back.items()}
    overdue = [state for state in LISTED_STATES if state in since and since[state] < oldest_allowed]
    crowded = [state for state, members in held_back.items() if members["count"] >= WAITING_EVENTS_ALARM]
    answer = {"head": head, "position": position, "unread": unread, "age_seconds": age, "held_back": held_back}
    return json.dumps(answer | {"overdue": sorted(overdue), "crowded": sorted(crowded)})


async def _table(
    store: Store,
    grant: Grant,
    query: Query,
    name: str,
    member: str,
    columns: Sequence[str],
    marks: Mapping[str, type],
    **parameters: Any,
) -> str:
    """A page of a list. Behind the columns of the answer, each row holds the marks that the next page starts after."""
    project, limit, cursor = _project(grant, query), query.limit(), query.text("cursor")
    place = read_cursor(cursor, *marks.values()) if cursor else [None] * len(marks)
    after = {f"after_{mark}": value for mark, value in zip(marks, place, strict=True)}
    async with store.read() as connection:
        rows = await _rows(connection, name, project=project, limit=limit + 1, **after, **parameters)
        behind = await _behind(connection)
    found = [dict(zip(columns, map(_plain, row), strict=False)) for row in rows[:limit]]
    next_cursor = write_cursor(*rows[limit - 1][len(columns) :]) if len(rows) > limit else ""
    return json.dumps({member: found, "count": len(found), "next_cursor": next_cursor, "projection": behind})


def _plain(value: Any) -> Any:
    return format_time(value) if isinstance(value, datetime) else value


def _project(grant: Grant, query: Query) -> str:
    project = query.needed("project")
    grant.readable(project)
    return project


async def _rows(connection: Connection, name: str, **parameters: Any) -> list[Any]:
    return await (await connection.execute(statement(name), parameters)).fetchall()


async def _now(
    connection: Connection,
    project: str,
    kind: str,
    limit: int,
    *,
    after: Sequence[str] | None,
    status: str | None = None,
    run: str | None = None,
    key: str | None = None,
) -> list[Found]:
    """A page of items as the live projection has them."""
    marks = dict(zip(("after_source_id", "after_key"), after or (None, None), strict=True))
    filters = {"project": project, "kind": kind, "status": status, "run": run, "key": key, "limit": limit}
    rows = await _rows(connection, "read_items", **filters, **marks)
    return [(source_id, name, from_json(registers), held_back) for source_id, name, registers, held_back in rows]


async def _then(
    connection: Connection,
    project: str,
    kind: str,
    when: When,
    *,
    after: Sequence[str] | None = None,
    status: str | None = None,
    run: str | None = None,
    key: str | None = None,
) -> list[Found]:
    """All items behind a place, folded again from the events that count then."""
    named = {"project": project, "run": run, "subject_id": key, **when._asdict()}
    rows = await _rows(connection, "read_facts", types=TYPES_OF[kind], **named, limit=FACTS_MAX)
    if len(rows) == FACTS_MAX:
        raise BadQuery(f"more than {FACTS_MAX} events would have to be looked at: ask for one run or id")
    kinds = {"project": project, "kind": "operation" if kind == "approval" else kind, **when._asdict()}
    held: dict[tuple[str, str], list[str]] = {}
    for source_id, name, text in await _rows(connection, "read_held", **kinds, key=key, limit=FACTS_MAX):
        held.setdefault((source_id, name), []).append(text)
    return sorted(
        (subject.source_id, subject.key, registers, held.get((subject.source_id, subject.key), [])[:HELD_SHOWN_MAX])
        for subject, registers in fold(map(Fact.of, rows)).items()
        if subject.kind == kind
        and (after is None or (subject.source_id, subject.key) > tuple(after))
        and (status is None or status == status_of(kind, registers))
    )


async def _behind(connection: Connection) -> dict[str, int]:
    head, position = (await _rows(connection, "read_behind"))[0]
    return {"head": head, "position": position, "behind": max(0, head - position)}

"""What the store answers to readers. Never writes, and shows no event of a project that the token may not read."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from temporality.contracts import format_time
from temporality.query import Place, Query, read_place, write_place
from temporality.sql import statement
from temporality.store import Store
from temporality.tokens import Grant

TEXT_FILTERS = ("source_id", "event_id", "run", "task", "actor", "type")
TIME_FILTERS = ("since", "until", "known_at")


async def events(store: Store, grant: Grant, query: Query) -> str:
    """A page of events as JSON text: by time with a cursor, or in ingest order if `after_position` is given."""
    filters = {name: query.text(name) for name in TEXT_FILTERS} | {name: query.time(name) for name in TIME_FILTERS}
    filters |= scope(grant, query.text("project")) | {"limit": query.limit()}
    after, cursor = query.position(), query.text("cursor")
    place = read_place(cursor) if cursor else None
    if after is not None:
        return await _tail(store, filters, after)
    return await _page(store, filters, place)


def scope(grant: Grant, project: str | None) -> dict[str, Any]:
    """The parameters that keep a statement inside of what the token may read. One project is asked for by equality,
    because only then an index gives the order.
    """
    projects = grant.readable(project)
    single = projects[0] if projects is not None and len(projects) == 1 else None
    return {"project": single, "projects": None if single else projects}


async def _page(store: Store, filters: Mapping[str, Any], place: Place | None) -> str:
    limit = filters["limit"]
    after = {f"cursor_{name}": getattr(place, name) if place else None for name in Place._fields}
    async with store.read() as connection:
        cursor = await connection.execute(statement("read_events"), {**filters, **after, "limit": limit + 1})
        rows = await cursor.fetchall()
    page = rows[:limit]
    next_cursor = write_place(Place(*page[-1][1:])) if len(rows) > limit else ""
    return _answer([(content, received_at) for content, _, received_at, *_ in page], f'"next_cursor":"{next_cursor}"')


async def _tail(store: Store, filters: Mapping[str, Any], after: int) -> str:
    async with store.read() as connection:
        cursor = await connection.execute(statement("tail_events"), {**filters, "after": after})
        rows = await cursor.fetchall()
    head = rows[0][0]
    page = [(position, content, received_at) for _, position, content, received_at in rows if position is not None]
    following = page[-1][0] if len(page) == filters["limit"] else max(after, head)
    members = f'"next_cursor":"","next_position":{following}'
    return _answer([(content, received_at) for _, content, received_at in page], members)


def _answer(page: list[tuple[str, datetime]], members: str) -> str:
    """The stored texts as they are: nothing is parsed, so nothing can change."""
    texts = (f'{content[:-1]},"received_at":"{format_time(received_at)}"}}' for content, received_at in page)
    return f'{{"events":[{",".join(texts)}],"count":{len(page)},{members}}}'

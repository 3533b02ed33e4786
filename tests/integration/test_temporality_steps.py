"""One step of the projection: what it may see, how much it may take, and that it takes less after a timeout."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from kernel_project.devstack.postgres import Postgres
from temporality.projection import loop, projector, rebuild
from tests.temporality_server import event, migrated, put

KNOWN = "knowledge.proposed"
BIG = 100_000  # characters of one event


@pytest.fixture
def connection(postgres: Postgres) -> Iterator[projector.Connection]:
    """A store whose server does not run: nothing projects unless a test does."""
    with psycopg.connect(migrated(postgres).database_url, autocommit=True) as connection:
        yield connection


def put_events(connection: projector.Connection, *events: dict[str, Any]) -> None:
    put(connection, *(json.dumps(one) for one in events))


def big(number: int, **data: Any) -> dict[str, Any]:
    members = {"knowledge_id": f"k-{number}", "proposition": "p", "more": "x" * BIG}
    return event("p", KNOWN, event_id=f"e-{number}", data=members | data)


def steps(connection: projector.Connection, bytes_max: int) -> list[int]:
    """How many events each step takes, to the end."""
    taken = []
    for _ in range(20):
        step = projector.advance(connection, projector.live_generation(connection), bytes_max=bytes_max)
        taken.append(step.events)
        if not step.more:
            return taken
    raise AssertionError("the projection does not come to an end")


def test_a_foreign_parent_beyond_the_position_is_not_seen_yet(connection: projector.Connection) -> None:
    child = event("p", source="s", event_id="child", data={"caused_by": ["parent"]})
    put_events(connection, child, event("q", source="s", event_id="parent"))
    generation = projector.live_generation(connection)
    projector.advance(connection, generation, upto=1)
    assert connection.execute("SELECT state FROM temporality_edge").fetchall() == [("missing",)]
    projector.advance(connection, generation)
    assert connection.execute("SELECT state FROM temporality_edge").fetchall() == [("foreign_project",)]
    assert rebuild.rebuild(connection, project="p").is_equal
    assert rebuild.rebuild(connection).is_equal


def test_a_step_takes_so_many_bytes_and_at_least_one_event(connection: projector.Connection) -> None:
    put_events(connection, *(big(number) for number in range(5)))
    assert steps(connection, 2 * BIG) == [2, 2, 1]
    assert rebuild.rebuild(connection, swap=False).is_equal


def test_released_events_are_taken_by_bytes_too(connection: projector.Connection) -> None:
    put_events(connection, *(big(number, caused_by=["parent"]) for number in range(4)))
    steps(connection, 10 * BIG)
    put_events(connection, event("p", event_id="parent"))
    assert steps(connection, 2 * BIG) == [1, 2, 2]
    assert connection.execute("SELECT count(*) FROM temporality_item").fetchone() == (4,)


def test_after_a_timeout_the_next_step_is_smaller_and_grows_again(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []

    def advance(connection: Any, generation: int, *, events_max: int, bytes_max: int) -> projector.Step:
        sizes.append((events_max, bytes_max))
        if len(sizes) < 3:
            raise psycopg.errors.QueryCanceled
        return projector.Step(1, 1, more=True)

    monkeypatch.setattr(projector, "advance", advance)
    pace = loop.Pace()
    for _ in range(2):
        with pytest.raises(psycopg.errors.QueryCanceled):
            pace.step(None, 1)  # type: ignore[arg-type]
    for _ in range(3):
        pace.step(None, 1)  # type: ignore[arg-type]
    assert sizes == [(projector.BATCH_EVENTS >> n, projector.STEP_BYTES >> n) for n in (0, 1, 2, 1, 0)]


def test_a_rebuild_goes_on_with_smaller_steps_after_a_timeout(
    connection: projector.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_events(connection, *(big(number) for number in range(5)))
    advance, refused = projector.advance, []

    def slow(*arguments: Any, events_max: int, **options: Any) -> projector.Step:
        if events_max > 2:
            refused.append(events_max)
            raise psycopg.errors.QueryCanceled
        return advance(*arguments, events_max=events_max, **options)

    monkeypatch.setattr(rebuild, "advance", slow)
    assert rebuild.rebuild(connection).is_equal
    assert refused

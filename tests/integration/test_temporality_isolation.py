"""What one project's reader must never see of another, and forged cursors, over the real server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kernel_project.devstack.postgres import Postgres
from temporality.query import write_cursor
from tests.temporality_server import Event, EventStore, event, running

V1 = "/v1/observations"
TIME = "2025-03-01T10:00:00Z"


@pytest.fixture(scope="module")
def store(postgres: Postgres) -> Iterator[EventStore]:
    with running(postgres) as store:
        yield store


@pytest.fixture(scope="module")
def token(store: EventStore) -> str:
    return store.token()


def first_of_run(project: str, event_id: str) -> Event:
    return event(project, source="sa", event_id=event_id, context={"run": "ra"}, data={"sequence": 1, "of": project})


def conflicts(store: EventStore, *projects: str) -> list[dict[str, Any]]:
    answer = store.get(f"{V1}/conflicts", store.token(*projects, role="reader"), project="b")
    found: list[dict[str, Any]] = answer.json["conflicts"]
    return found


def test_a_conflict_shows_the_kept_version_only_to_those_who_may_read_its_project(store: EventStore) -> None:
    assert store.post(store.token("a"), first_of_run("a", "e-a")).codes == ["accepted"]
    answer = store.post(store.token("b"), first_of_run("b", "e-b"), first_of_run("b", "e-a"))
    assert answer.codes == ["conflict", "conflict"]
    assert [(one["kind"], one["kept"]) for one in conflicts(store, "b")] == [("sequence", None), ("content", None)]
    assert all('"of":"a"' in one["kept"] for one in conflicts(store, "a", "b"))
    assert all('"of":"a"' in one["kept"] for one in conflicts(store))


@pytest.mark.parametrize(
    ("path", "marks"),
    [
        ("/runs/timeline?run=r", [0, "yesterday", "s", "e"]),
        ("/runs/timeline?run=r", [2**63, TIME, "s", "e"]),
        ("/runs/timeline?run=r", [-1, TIME, "s", "e"]),
        ("/runs/timeline?run=r", [0, TIME, "\0", "e"]),
        ("/runs/timeline?run=r", [0, "0001-01-01T00:00:00+23:59", "s", "e"]),
        ("/knowledge?", ["\0"]),
        ("/knowledge?", ["\ud800"]),
        ("/operations?", ["s", "\0"]),
        ("/events?", [TIME, TIME, "s", "\0"]),
        ("/events?", [TIME, "9999-12-31T23:59:59-23:59", "s", "e"]),
    ],
)
def test_a_forged_cursor_is_refused(store: EventStore, token: str, path: str, marks: list[str | int]) -> None:
    answer = store.request("GET", f"{V1}{path}&project=p&cursor={write_cursor(*marks)}", token)
    assert (answer.status, answer.json["error"]) == (400, "cursor is not one that this server gave")

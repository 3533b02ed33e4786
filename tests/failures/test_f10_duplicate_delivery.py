"""F10. The same event is delivered twice, perhaps with another payload: one semantic event, and a visible conflict."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from kernel_project.devstack.postgres import Postgres
from tests.temporality_server import EVENTS, Event, EventStore, event, running


@pytest.fixture(scope="module")
def store(postgres: Postgres) -> Iterator[EventStore]:
    with running(postgres) as store:
        yield store


@pytest.fixture(scope="module")
def token(store: EventStore) -> str:
    return store.token()


@pytest.fixture
def project() -> str:
    return uuid.uuid4().hex


def stored(store: EventStore, token: str, project: str) -> list[Event]:
    found: list[Event] = store.get(EVENTS, token, project=project).json["events"]
    return found


def test_a_redelivery_is_repeated_and_changes_nothing(store: EventStore, token: str, project: str) -> None:
    one = event(project, data={"n": 1})
    store.post(token, one)
    before = stored(store, token, project)
    again = store.post(token, one, one)
    assert (again.status, again.codes) == (200, ["repeated", "repeated"])
    assert stored(store, token, project) == before


def test_the_projection_counts_a_redelivered_event_once(store: EventStore, token: str, project: str) -> None:
    run = [event(project, "run.started", context={"run": "r"}, data={"sequence": 1})]
    for _ in range(3):
        store.post(token, *run, *run)
    store.settled(token, project)
    state = store.get("/v1/observations/runs/state", token, project=project, run="r").json
    assert state["status"] == "running"
    assert state["sources"][0]["received"] == {"count": 1, "highest": 1, "contiguous": 1, "unnumbered": 0}


def test_another_payload_is_a_conflict_that_keeps_both_versions(store: EventStore, token: str, project: str) -> None:
    one = event(project, data={"amount": 10})
    other = one | {"data": {"amount": 99}}
    store.post(token, one)
    refused = store.post(token, other)
    assert (refused.status, refused.codes) == (207, ["conflict"])
    assert refused.json["results"][0]["error"] == "source event ID already exists with different content"
    assert [e["data"] for e in stored(store, token, project)] == [{"amount": 10}]
    conflict = store.get("/v1/observations/conflicts", token, project=project).json["conflicts"][0]
    assert '"amount":10' in conflict["kept"]
    assert '"amount":99' in conflict["refused"]


def test_a_conflict_that_is_sent_again_and_again_is_one_row_with_a_count(
    store: EventStore, token: str, project: str
) -> None:
    one = event(project, data={"amount": 10})
    other = one | {"data": {"amount": 99}}
    store.post(token, one)
    for _ in range(3):
        store.post(token, other, other)
    conflicts = store.get("/v1/observations/conflicts", token, project=project).json["conflicts"]
    assert [conflict["times_seen"] for conflict in conflicts] == [6]


def test_t05_a_second_event_at_one_sequence_is_a_conflict(store: EventStore, token: str, project: str) -> None:
    first, second = (event(project, context={"run": "r"}, data={"sequence": 7}) for _ in range(2))
    answer = store.post(token, first, second)
    assert answer.codes == ["accepted", "conflict"]
    assert "sequence" in answer.json["results"][1]["error"]
    conflict = store.get("/v1/observations/conflicts", token, project=project).json["conflicts"][0]
    assert conflict["kind"] == "sequence"
    assert first["event_id"] in conflict["kept"]


def test_t47_the_same_content_written_in_another_way_is_no_conflict(
    store: EventStore, token: str, project: str
) -> None:
    one = event(project, event_id="odd", data={"a": 1.0, "b": {"c": "é", "d": [1, 2]}})
    store.post(token, one)
    source = f'"source":{{"integration":"tests","id":"source-of-{project}"}}'
    text = (
        '{"events": [{"type":"test.note", "occurred_at":"2025-03-01T11:00:00+01:00", "data":{"b":{"d":[1,2],'
        f'"c":"\\u00e9"}},"a":1}}, "evidence":[], "schema":"temporality.event/1", "event_id":"odd", '
        f'"context":{{"project":"{project}","task":null}}, {source}}}]}}'
    )
    assert store.request("POST", EVENTS, token, text.encode()).codes == ["repeated"]


def test_t20_a_batch_whose_answer_was_lost_is_repeated_after_a_kill(
    store: EventStore, token: str, project: str
) -> None:
    events = [event(project, data={"n": n}) for n in range(20)]
    store.post(token, *events)
    store.kill()
    store.start()
    assert set(store.post(token, *events).codes) == {"repeated"}
    assert len(stored(store, token, project)) == 20

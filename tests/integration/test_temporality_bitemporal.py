"""Two times: `as_of` looks at what had happened, `known_at` at what had arrived.."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from kernel_project.devstack.postgres import Postgres
from tests.temporality_server import EVENTS, Event, EventStore, event, running

V1 = "/v1/observations"


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


@pytest.fixture
def ask(store: EventStore, token: str, project: str) -> Any:
    """Read a door of the project once the projection has caught up."""

    def look(path: str, **parameters: Any) -> Any:
        store.settled(token, project)
        answer = store.get(f"{V1}/{path}", token, project=project, **parameters)
        assert answer.status == 200, answer
        return answer.json

    return look


@pytest.fixture
def tell(store: EventStore, token: str, project: str) -> Any:
    """Send one event that happened at a minute; returns when it arrived."""

    def send(kind: str, minute: int, context: dict[str, Any] | None = None, **data: Any) -> str:
        sent = event(project, kind, data=data, context=context or {"run": "r"}, occurred_at=at(minute))
        assert store.post(token, sent).status == 200
        return arrived(store, token, project, sent)

    return send


def arrived(store: EventStore, token: str, project: str, sent: Event) -> str:
    found = store.get(EVENTS, token, project=project, event_id=sent["event_id"]).json["events"]
    received_at: str = found[0]["received_at"]
    return received_at


def at(minute: int) -> str:
    return f"2025-03-01T10:{minute:02}:00.000000Z"


def test_knowledge_is_read_as_it_was_and_as_it_was_known(tell: Any, ask: Any) -> None:
    tell("knowledge.proposed", 1, knowledge_id="k", proposition="p")
    known = tell("knowledge.challenged", 30, knowledge_id="k")
    tell("knowledge.confirmed", 10, knowledge_id="k")
    states = {
        "now": ask("knowledge")["items"][0]["state"],
        "at minute 20": ask("knowledge", as_of=at(20))["items"][0]["state"],
        "at minute 20, as known before the late one": ask("knowledge", as_of=at(20), known_at=known)["items"][0][
            "state"
        ],
    }
    assert states == {
        "now": "challenged", "at minute 20": "confirmed", "at minute 20, as known before the late one": "proposed",
    }  # fmt: skip
    assert ask("knowledge", as_of=at(0))["items"] == []


def test_an_operation_is_read_as_it_was_and_as_it_was_known(tell: Any, ask: Any) -> None:
    tell("tool.started", 1, operation_id="o", sequence=1, tool="pay")
    known = tell("tool.failed", 5, operation_id="o", sequence=2, effect="uncertain")
    tell("operation.reconciled", 3, operation_id="o", sequence=3, effect="occurred")
    assert ask("operations")["operations"][0]["status"] == "reconciled"
    assert ask("operations", as_of=at(2))["operations"][0]["status"] == "dispatched"
    assert ask("operations", known_at=known)["operations"][0]["status"] == "uncertain"
    assert ask("operations", known_at=known, status="reconciled")["operations"] == []
    assert ask("operations", as_of=at(0))["operations"] == []


def test_an_approval_and_its_run_are_read_as_they_were(tell: Any, ask: Any) -> None:
    tell("run.started", 1, sequence=1)
    asked = tell("approval.requested", 2, operation_id="o", sequence=2)
    tell("approval.granted", 3, operation_id="o", sequence=3)
    tell("run.completed", 4, sequence=4)
    assert ask("approvals", run="r")["approvals"][0]["status"] == "granted"
    assert ask("approvals", run="r", as_of=at(2))["approvals"][0]["status"] == "requested"
    assert ask("approvals", known_at=asked)["approvals"][0]["status"] == "requested"
    assert ask("runs/state", run="r", at=at(3))["status"] == "running"
    assert ask("runs/state", run="r", known_at=asked)["status"] == "running"
    assert ask("runs/state", run="r", at=at(0))["status"] == "unknown"


def test_what_had_arrived_of_a_run_is_of_the_same_time_as_its_state(tell: Any, ask: Any) -> None:
    tell("run.started", 1, sequence=1)
    known = tell("turn.started", 2, sequence=2)
    tell("turn.completed", 4, sequence=4, caused_by=["never sent"])
    tell("run.completed", 5, sequence=5)
    [then] = ask("runs/state", run="r", known_at=known)["sources"]
    assert then["received"] == {"count": 2, "highest": 2, "contiguous": 2, "unnumbered": 0}
    assert (then["status"], then["last_received_at"], then["held_back"], then["incomplete"]) == (
        "running", known, 0, False,
    )  # fmt: skip
    [later] = ask("runs/state", run="r", at=at(4))["sources"]
    assert later["received"] == {"count": 3, "highest": 4, "contiguous": 2, "unnumbered": 0}
    assert (later["status"], later["held_back"], later["incomplete"]) == ("running", 1, True)
    assert ask("runs/state", run="r", at=at(0))["sources"] == []


def test_what_waits_for_its_cause_is_not_counted_and_the_item_is_incomplete(tell: Any, ask: Any) -> None:
    tell("approval.requested", 1, operation_id="o", sequence=1)
    tell("tool.started", 1, operation_id="o", sequence=3)
    tell("tool.completed", 2, operation_id="o", sequence=4, caused_by=["never sent"])
    for parameters in ({}, {"as_of": at(5)}):
        operation, approval = ask("operations", **parameters)["operations"][0], ask("approvals", **parameters)
        assert (operation["status"], operation["incomplete"]) == ("dispatched", True)
        assert approval["approvals"][0]["incomplete"]
    assert not ask("operations", as_of=at(1))["operations"][0]["incomplete"]


def test_pages_of_the_past_hold_every_item_once(tell: Any, ask: Any) -> None:
    for number in range(5):
        tell("tool.started", number, operation_id=f"o-{number}")
    found, cursor = [], None
    while cursor != "":
        page = ask("operations", as_of=at(3), limit=2, cursor=cursor)
        found += [one["operation_id"] for one in page["operations"]]
        cursor = page["next_cursor"]
    assert found == [f"o-{number}" for number in range(4)]

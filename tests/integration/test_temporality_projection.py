"""O3, O5, R4, I5 at the event store: what waits is shown as waiting, what is not understood is set aside, lag shows."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from kernel_project.devstack.postgres import Postgres
from temporality import catalogue
from temporality.projection import projector
from tests.temporality_server import Event, EventStore, event, running
from tests.waiting import until_sync

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
def see(store: EventStore, token: str, project: str) -> Any:
    """Read a table of the project once the projection has caught up."""

    def look(path: str, **parameters: Any) -> Any:
        store.settled(token, project)
        answer = store.get(f"{V1}/{path}", token, project=project, **parameters)
        assert answer.status == 200, answer
        return answer.json

    return look


def step(project: str, kind: str, sequence: int, *causes: str, run: str = "r", **data: Any) -> Event:
    return event(
        project,
        kind,
        event_id=f"{run}-{sequence}",
        context={"run": run},
        data={"sequence": sequence, "caused_by": list(causes)} | data,
    )


def names(found: list[dict[str, Any]]) -> list[str]:
    return [entry["event_id"] for entry in found]


def test_t52_a_child_waits_for_its_parent_and_nobody_else_does(
    store: EventStore, token: str, project: str, see: Any
) -> None:
    store.post(token, step(project, "tool.started", 2, "r-1", operation_id="o"))
    store.post(token, step(project, "run.started", 1, run="other"))
    waiting = see("unresolved")["unresolved"][0]
    assert (waiting["event_id"], waiting["state"], waiting["edges"]) == ("r-2", "waiting", ["r-1: missing"])
    assert see("operations")["operations"] == []
    assert see("runs/state", run="other")["status"] == "running"
    store.post(token, step(project, "run.started", 1))
    assert see("operations")["operations"][0]["status"] == "dispatched"
    assert see("unresolved")["unresolved"] == []


def test_a_long_chain_that_waited_for_its_first_event_is_applied_in_one_go(
    store: EventStore, token: str, project: str, see: Any
) -> None:
    chain = [step(project, "tool.started", n, f"r-{n - 1}", operation_id=f"o-{n}") for n in range(2, 302)]
    for start in range(0, 300, 100):
        store.post(token, *chain[start : start + 100])
    assert len(see("unresolved", limit=500)["unresolved"]) == 300
    store.post(token, step(project, "run.started", 1))
    assert see("operations", limit=500)["count"] == 300


def test_self_and_circular_and_foreign_parents_are_never_waited_for(
    store: EventStore, token: str, project: str, see: Any
) -> None:
    foreign = event(f"{project}-2", source=f"source-of-{project}", event_id="foreign")
    steps = [
        step(project, "run.started", 1, "r-1"),
        step(project, "tool.started", 2, "r-3", operation_id="o-2"),
        step(project, "tool.started", 3, "r-2", operation_id="o-3"),
        step(project, "tool.started", 4, "foreign", operation_id="o-4"),
    ]
    for one in (*steps, foreign):
        store.post(token, one)
    assert see("operations")["count"] == 3
    reasons = {(entry["event_id"], entry["reason"]) for entry in see("unresolvable")["unresolvable"]}
    assert reasons == {("r-1", "self"), ("r-2", "cyclic"), ("r-3", "cyclic"), ("r-4", "foreign_project")}


def test_an_unknown_mutation_is_set_aside_its_item_incomplete_and_the_lag_counts_it(
    store: EventStore, token: str, project: str, see: Any
) -> None:
    known = {"knowledge_id": "k", "proposition": "p"}
    answer = store.post(
        token, event(project, "knowledge.proposed", data=known), event(project, "knowledge.forgotten", data=known)
    )
    assert (answer.status, answer.codes) == (200, ["accepted", "quarantined"])
    item = see("knowledge")["items"][0]
    assert (item["state"], item["incomplete"]) == ("proposed", True)
    assert see("quarantine")["quarantine"][0]["reason"] == "this knowledge.* type is not known"
    assert store.settled(token, project)["held_back"]["quarantined"]["count"] == 1


def test_what_depends_on_a_quarantined_event_is_blocked_not_waiting(
    store: EventStore, token: str, project: str, see: Any
) -> None:
    store.post(token, step(project, "tool.started.v2", 1), step(project, "run.started", 2, "r-1"))
    entry = see("unresolved")["unresolved"][0]
    assert (entry["state"], entry["edges"]) == ("blocked", ["r-1: unapplied"])


def test_a_type_that_is_registered_later_is_released_in_order(
    store: EventStore, token: str, project: str, see: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = {"knowledge_id": "k", "proposition": "p"}
    store.post(token, event(project, "knowledge.proposed", data=data))
    store.post(token, event(project, "knowledge.forgotten", event_id="f", data=data))
    store.post(token, event(project, "knowledge.confirmed", data=data | {"caused_by": ["f"]}))
    assert see("knowledge")["items"][0]["state"] == "proposed"
    store.stop()
    monkeypatch.setattr(
        catalogue, "TYPES", {**catalogue.TYPES, "knowledge.forgotten": catalogue.KNOWLEDGE_TYPES["knowledge.used"]}
    )
    catalogue.fingerprint.cache_clear()
    with psycopg.connect(store.database_url, autocommit=True) as connection:
        generation = projector.live_generation(connection)
        while projector.advance(connection, generation).more:
            pass
    catalogue.fingerprint.cache_clear()
    store.start()
    assert see("quarantine")["quarantine"] == []
    assert see("knowledge")["items"][0]["state"] == "confirmed"


def test_gaps_and_progress_tell_what_is_missing_and_heal(store: EventStore, token: str, project: str, see: Any) -> None:
    store.post(token, *[step(project, "test.note", n) for n in (1, 2, 5, 6, 9)])
    gap = see("gaps")["gaps"][0]
    assert (gap["run"], gap["missing_from"], gap["missing_to"], gap["highest"]) == ("r", 3, 4, 9)
    asked = {"source_id": f"source-of-{project}", "run": ["r", "unknown"]}
    known, unknown = see("runs/progress", **asked)["runs"]
    assert (known["contiguous"], known["highest"], known["count"]) == (2, 9, 5)
    assert (unknown["contiguous"], unknown["count"]) == (0, 0)
    store.post(token, *[step(project, "test.note", n) for n in (7, 8, 4, 3)])
    assert see("gaps")["gaps"] == []
    assert see("runs/progress", **asked)["runs"][0]["contiguous"] == 9


def test_a_late_event_does_not_move_a_run_back(store: EventStore, token: str, project: str, see: Any) -> None:
    store.post(token, step(project, "run.completed", 9))
    store.post(token, step(project, "run.started", 1))
    assert see("runs/state", run="r")["status"] == "completed"


def test_an_operation_shows_its_effect_its_reconciliation_and_the_events_that_made_them(
    store: EventStore, token: str, project: str, see: Any
) -> None:
    store.post(
        token,
        step(project, "tool.started", 1, operation_id="o", tool="pay"),
        step(project, "tool.failed", 2, "r-1", operation_id="o", effect="uncertain"),
        step(project, "operation.reconciled", 3, "r-1", operation_id="o", effect="occurred", note="seen in the bank"),
    )
    found = see("operations", status="reconciled")["operations"][0]
    assert (found["effect"], found["call"]["tool"]) == ("occurred", "pay")
    assert found["reconciliation"]["note"] == "seen in the bank"
    assert found["events"]["status"] == "r-3"
    assert found["events"]["call"] == "r-1"


def test_the_timeline_is_in_sequence_and_says_what_is_applied(
    store: EventStore, token: str, project: str, see: Any
) -> None:
    store.post(token, *[step(project, "test.note", n, *(["never"] if n == 2 else [])) for n in (3, 1, 2)])
    page = see("runs/timeline", run="r", limit=2)
    rest = see("runs/timeline", run="r", limit=2, cursor=page["next_cursor"])
    states = [(entry["event"]["event_id"], entry["projected"]) for entry in page["events"] + rest["events"]]
    assert states == [("r-1", "applied"), ("r-2", "waiting"), ("r-3", "applied")]


def test_a_killed_server_goes_on_where_it_was(store: EventStore, token: str, project: str, see: Any) -> None:
    for start in range(1, 2_001, 100):
        steps = [
            step(project, "tool.started", n, f"r-{n - 1}", operation_id=f"o-{n}") for n in range(start, start + 100)
        ]
        store.post(token, *steps)
        if start in (501, 1201):
            store.kill()
            store.start()
    store.post(token, step(project, "test.note", 2_001), event(project, event_id="r-0"))
    assert see("runs/progress", source_id=f"source-of-{project}", run="r")["runs"][0]["contiguous"] == 2_001
    assert see("unresolved")["unresolved"] == []
    verified = store.command("temporality_rebuild", "--project", project, "--verify", "--json")
    assert '"equal": true' in verified


def test_f9_without_the_database_it_says_503_and_when_to_come_back_and_recovers(
    store: EventStore, token: str, project: str, postgres: Postgres
) -> None:
    one = event(project)
    postgres.stop()
    answer = store.post(token, one)
    assert (answer.status, answer.headers["retry-after"]) == (503, "2")
    assert answer.json["error"]
    assert store.get("/healthz").status == 503
    postgres.start()
    until_sync(lambda: store.post(token, one).status == 200)
    assert store.post(token, one).codes == ["repeated"]
    store.settled(token, project)


def test_a_token_bound_to_a_source_writes_as_that_source_only(store: EventStore, project: str) -> None:
    bound = store.token(project, sources=["mine"])
    assert store.post(bound, event(project, source="mine")).codes == ["accepted"]
    assert store.post(bound, event(project, source="theirs")).status == 403


def test_a_revoked_token_ends(store: EventStore, project: str) -> None:
    secret = store.command("temporality_token", "create", "--name", project, "--role", "reader", "--all-projects")
    assert store.get(f"{V1}/lag", secret).status == 200
    store.command("temporality_token", "revoke", "--name", project)
    until_sync(lambda: store.get(f"{V1}/lag", secret).status == 401)


def test_every_list_is_read_page_by_page(store: EventStore, token: str, project: str, see: Any) -> None:
    """Also when the projection is made anew between two pages."""
    for number in range(5):
        run = f"run-{number}"
        sent = [
            step(project, "turn.started", 3, run=run),
            step(project, "knowledge.imagined", 4, run=run),
            step(project, "turn.started", 5, f"{run}-9", run=run),
            step(project, "turn.started", 6, f"{run}-6", f"{run}-9", run=run),
        ]
        assert store.post(token, *sent, sent[0] | {"type": "turn.completed"}).status in (200, 207)
    for path, member, count in (
        ("gaps", "run", 5),
        ("conflicts", "event_id", 5),
        ("quarantine", "event_id", 5),
        ("unresolved", "event_id", 10),
        ("unresolvable", "event_id", 5),
    ):
        found: list[str] = []
        cursor = None
        while cursor != "":
            page = see(path, limit=2, cursor=cursor)
            found += [one[member] for one in page[path]]
            cursor = page["next_cursor"]
            if path == "unresolvable" and len(found) == 2:
                store.command("temporality_rebuild")
        assert len(found) == len(set(found)) == count, (path, found)

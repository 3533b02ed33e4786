"""Incidents of others that concern the side that receives: T01, T02, T20, T27, T29, T33, T42, T46, T49, T50, T55.

T05, T20, T46 and T47 are also in tests/failures/test_f10_duplicate_delivery.py, T52 in
tests/integration/test_temporality_projection.py, T50 and T54 in test_temporality_determinism.py and
test_temporality_rebuild.py. T57: the event store has no statement that deletes an event; a test here keeps it so.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

import temporality
from kernel_project.devstack.postgres import Postgres
from temporality.bench import sample_events
from temporality.projection import projector, rebuild
from tests.temporality_server import EVENTS, Event, EventStore, event, free_port, migrated, put, running
from tests.waiting import until_sync

V1 = "/v1/observations"
APP = Path(temporality.__file__).parent


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
def quiet(postgres: Postgres) -> Iterator[projector.Connection]:
    """A store without a server: nothing moves unless the test does it."""
    with psycopg.connect(migrated(postgres).database_url, autocommit=True) as connection:
        yield connection


def names(events: list[Event]) -> list[str]:
    return [one["event_id"] for one in events]


def tail(store: EventStore, token: str, project: str, after: int) -> tuple[list[str], int]:
    answer = store.get(EVENTS, token, project=project, after_position=after).json
    return names(answer["events"]), answer["next_position"]


def waits_for_a_lock(connection: projector.Connection) -> bool:
    query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    row = connection.execute(query).fetchone()
    return bool(row and row[0])


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_t01_no_reader_passes_an_event_that_is_not_committed_yet(
    store: EventStore, token: str, project: str, end: str
) -> None:
    _, start = tail(store, token, project, 0)
    first, second = event(project, event_id="first"), event(project, event_id="second")
    with psycopg.connect(store.database_url) as late, ThreadPoolExecutor(1) as pool:
        put(late, json.dumps(first))
        answer = pool.submit(store.post, token, second)
        with psycopg.connect(store.database_url, autocommit=True) as other:
            until_sync(lambda: waits_for_a_lock(other))
        assert tail(store, token, project, start) == ([], start)
        late.execute(end)
        assert answer.result().codes == ["accepted"]
    expected = ["first", "second"] if end == "COMMIT" else ["second"]
    assert tail(store, token, project, start) == (expected, start + len(expected))
    assert store.settled(token, project)["unread"] == 0


def test_t02_an_event_that_arrives_within_a_step_is_left_to_the_next_one(
    quiet: projector.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, read = quiet.info.dsn, projector._rows

    def commit_and_read(connection: projector.Connection, name: str, **parameters: Any) -> Any:
        if name == "project_read":
            with psycopg.connect(url, autocommit=True) as other:
                put(other, json.dumps(event("p", "run.started", event_id="in between", context={"run": "2"})))
        return read(connection, name, **parameters)

    put(quiet, json.dumps(event("p", "run.started", event_id="before", context={"run": "1"})))
    monkeypatch.setattr(projector, "_rows", commit_and_read)
    assert projector.advance(quiet, 1).position == 1
    monkeypatch.undo()
    step = projector.advance(quiet, 1)
    assert (step.events, step.position) == (1, 2)


def test_t27_each_event_of_a_batch_has_its_own_answer(store: EventStore, token: str, project: str) -> None:
    known = event(project, event_id="known", data={"n": 1})
    store.post(token, known)
    batch = [known, known | {"data": {"n": 2}}, event(project, event_id="new"), event(project, "knowledge.new")]
    answer = store.post(token, *batch)
    assert answer.status == 207
    assert answer.codes == ["repeated", "conflict", "accepted", "quarantined"]
    assert [result["event_id"] for result in answer.json["results"]] == names(batch)
    assert (answer.json["accepted"], answer.json["repeated"]) == (2, 1)


def test_t27_an_invalid_event_refuses_its_whole_batch_and_nothing_of_it_is_kept(
    store: EventStore, token: str, project: str
) -> None:
    answer = store.post(token, event(project), event(project, " "))
    assert answer.status == 422
    assert answer.json["error"].startswith("events[1]: type: ")
    assert store.get(EVENTS, token, project=project).json["count"] == 0


def test_t29_a_body_that_is_too_large_is_413_and_the_next_one_gets_in(
    store: EventStore, token: str, project: str
) -> None:
    assert store.post(token, event(project, data={"text": "x" * 1024 * 1024})).status == 413
    assert store.post(token, event(project, data={"text": "x" * 1000 * 1000})).codes == ["accepted"]


def test_t33_nothing_notifies_or_listens() -> None:
    for path in [*APP.rglob("*.py"), *APP.rglob("*.sql")]:
        assert not re.search(r"\b(NOTIFY|LISTEN|pg_notify)\b", path.read_text()), path


def test_t42_two_servers_that_store_the_same_events_in_opposite_orders_never_deadlock(
    store: EventStore, token: str, project: str
) -> None:
    other = EventStore(store.database_url, free_port())
    other.start()
    try:
        for _ in range(5):
            events = [event(project, data={"n": n}) for n in range(60)]
            with ThreadPoolExecutor(4) as pool:
                asked = [(store, events), (other, events[::-1]), (other, events[30:]), (store, events[::-2])]
                answers = list(pool.map(lambda one: one[0].post(token, *one[1]), asked))
            assert {answer.status for answer in answers} == {200}
            assert sum(answer.json["accepted"] for answer in answers) == 60
    finally:
        other.stop()
    assert store.get(EVENTS, token, project=project, limit=500).json["count"] == 300


def test_t46_another_payload_is_told_even_while_the_first_one_is_being_stored(
    store: EventStore, token: str, project: str
) -> None:
    one = event(project, data={"n": 1})
    with psycopg.connect(store.database_url) as first, ThreadPoolExecutor(1) as pool:
        put(first, json.dumps(one))
        answer = pool.submit(store.post, token, one | {"data": {"n": 2}})
        with psycopg.connect(store.database_url, autocommit=True) as other:
            until_sync(lambda: waits_for_a_lock(other))
        first.commit()
        assert answer.result().codes == ["conflict"]
    conflict = store.get(f"{V1}/conflicts", token, project=project).json["conflicts"][0]
    assert ('"n":1' in conflict["kept"], '"n":2' in conflict["refused"]) == (True, True)


def test_t49_two_sources_may_use_one_event_id(store: EventStore, token: str, project: str) -> None:
    twins = [event(project, source=f"{project}-{n}", event_id="same", data={"n": n}) for n in range(2)]
    assert store.post(token, *twins).codes == ["accepted", "accepted"]
    assert store.get(EVENTS, token, project=project, event_id="same").json["count"] == 2


def test_t49_a_second_projection_sees_what_the_first_one_has_read(quiet: projector.Connection) -> None:
    put(quiet, *sample_events(200))
    assert projector.advance(quiet, 1).events == 200
    again = rebuild.rebuild(quiet, swap=False)
    assert (again.events, again.is_equal) == (200, True)


def test_t50_the_place_never_passes_what_is_held_back_without_keeping_it(quiet: projector.Connection) -> None:
    waiting = event("p", "run.started", event_id="child", context={"run": "r"}, data={"caused_by": ["parent"]})
    put(quiet, json.dumps(waiting), json.dumps(event("p", event_id="later")))
    assert projector.advance(quiet, 1).position == 2
    held = quiet.execute("SELECT event_id, state FROM temporality_pending").fetchall()
    assert held == [("child", "waiting")]
    put(quiet, json.dumps(event("p", event_id="parent", source="source-of-p")))
    while projector.advance(quiet, 1).more:
        pass
    assert quiet.execute("SELECT count(*) FROM temporality_pending").fetchone() == (0,)
    assert quiet.execute("SELECT key, status FROM temporality_item").fetchall() == [("r", "running")]


def pages(store: EventStore, token: str, project: str, **parameters: Any) -> list[str]:
    """All events of a project by time, in small pages."""
    found, cursor = [], None
    while cursor != "":
        answer = store.get(EVENTS, token, project=project, limit=7, cursor=cursor, **parameters).json
        found += names(answer["events"])
        cursor = answer["next_cursor"]
    return found


def tailed(store: EventStore, token: str, project: str) -> list[str]:
    """All events of a project in the order of arrival, in small pages, beginning with the store's first one."""
    found: list[str] = []
    after, before = 0, -1
    while after != before:
        before = after
        answer = store.get(EVENTS, token, project=project, limit=7, after_position=after).json
        found += names(answer["events"])
        after = answer["next_position"]
    return found


def test_t55_every_reader_sees_every_event_of_a_project_among_those_of_others(
    store: EventStore, token: str, project: str
) -> None:
    sent = [event(project if n % 3 else f"{project}-other", event_id=f"e-{n}", context={"run": "r"}) for n in range(60)]
    store.post(token, *sent)
    mine = [one["event_id"] for one in sent if one["context"]["project"] == project]
    assert tailed(store, token, project) == mine
    assert sorted(pages(store, token, project)) == sorted(mine)
    assert sorted(pages(store, token, project, run="r")) == sorted(mine)
    store.settled(token, project)
    state = store.get(f"{V1}/runs/state", token, project=project, run="r").json
    assert state["sources"][0]["received"]["unnumbered"] == len(mine)


def test_t55_a_repair_says_how_much_it_looked_at(store: EventStore, token: str, project: str) -> None:
    store.post(token, *[event(project) for _ in range(30)])
    store.settled(token, project)
    report = json.loads(store.command("temporality_rebuild", "--project", project, "--verify", "--json"))
    assert (report["events"], report["equal"]) == (30, True)


def test_t57_no_statement_deletes_or_changes_an_event() -> None:
    for path in (APP / "sql").glob("*.sql"):
        assert not re.search(r"(DELETE FROM|UPDATE|TRUNCATE)\s+temporality_(event|conflict)\b", path.read_text()), path

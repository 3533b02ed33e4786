"""O5, T54. The projection is made anew beside the one that is read: while events arrive, after a kill, from behind."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from kernel_project.devstack.postgres import Postgres
from kernel_project.primitives.errors import Conflict
from temporality.bench import sample_events
from temporality.projection import projector, rebuild
from tests.temporality_server import EVENTS, ROOT, EventStore, event, migrated, put, running
from tests.waiting import until_sync

MANY = 15_000  # several steps of a rebuild, so that there is a middle to be killed in

PAUSE_SECONDS = 0.05  # between batches of 100, so that a rebuild on a busy machine catches up


@pytest.fixture
def store(postgres: Postgres) -> EventStore:
    """A store whose server does not run: nothing projects unless a test does."""
    return migrated(postgres)


@pytest.fixture
def connection(store: EventStore) -> Iterator[projector.Connection]:
    with psycopg.connect(store.database_url, autocommit=True) as connection:
        yield connection


def building(connection: projector.Connection) -> int:
    """How far an unfinished rebuild has read; 0 without one."""
    row = connection.execute("SELECT position FROM temporality_projector WHERE state = 'building'").fetchone()
    return int(row[0]) if row else 0


def verified(store: EventStore, *options: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(store.command("temporality_rebuild", "--json", *options))
    return answer


def test_t54_events_that_arrive_during_a_rebuild_are_in_it_and_the_digests_are_equal(postgres: Postgres) -> None:
    with running(postgres) as store:
        token = store.token()
        done = threading.Event()
        statuses: list[int] = []
        sender = threading.Thread(target=keep_sending, args=(store, token, done, statuses))
        sender.start()
        try:
            found = [verified(store), verified(store, "--project", "bench"), verified(store)]
        finally:
            done.set()
            sender.join()
        assert set(statuses) == {200}
        store.settled(token, "bench")
        found.append(verified(store, "--verify"))
    assert [one["equal"] for one in found] == [True] * 4
    assert found[-1]["events"] == len(statuses) * 100


def keep_sending(store: EventStore, token: str, done: threading.Event, statuses: list[int]) -> None:
    while not done.wait(PAUSE_SECONDS):
        texts = sample_events(100)
        answer = store.request("POST", EVENTS, token, ('{"events":[' + ",".join(texts) + "]}").encode())
        statuses.append(answer.status)


def test_a_killed_rebuild_goes_on_where_it_was(store: EventStore, connection: projector.Connection) -> None:
    put(connection, *sample_events(MANY))
    command = [sys.executable, "manage.py", "temporality_rebuild"]
    process = subprocess.Popen(command, cwd=ROOT, env=store.environment(), stderr=subprocess.DEVNULL)
    until_sync(lambda: building(connection) > 0)
    process.kill()
    process.wait()
    reached = building(connection)
    assert 0 < reached < MANY
    found = verified(store)
    assert (found["equal"], found["swapped"], found["events"]) == (True, True, MANY - reached)
    assert verified(store, "--verify")["equal"]


def test_a_projection_that_is_behind_is_brought_up_before_it_is_compared(
    store: EventStore, connection: projector.Connection
) -> None:
    put(connection, *sample_events(500))
    found = rebuild.rebuild(connection, swap=False)
    assert (found.events, found.position, found.is_equal) == (500, 500, True)


def test_a_second_rebuild_at_the_same_time_is_refused(store: EventStore, connection: projector.Connection) -> None:
    with psycopg.connect(store.database_url, autocommit=True) as other:
        other.execute("SELECT pg_advisory_lock(%s)", [rebuild.LOCK_KEY])
        with pytest.raises(Conflict, match="another rebuild is running"):
            rebuild.rebuild(connection)
        other.execute("SELECT pg_advisory_unlock(%s)", [rebuild.LOCK_KEY])
    assert rebuild.rebuild(connection).is_equal


def test_an_unfinished_rebuild_of_one_project_is_finished_or_abandoned_first(
    store: EventStore, connection: projector.Connection
) -> None:
    put(connection, json.dumps(event("p", "run.started", context={"run": "r"})))
    rebuild._begin(connection, "p")
    with pytest.raises(Conflict, match="an unfinished rebuild of p"):
        rebuild.rebuild(connection)
    assert rebuild.abandon(connection)
    assert rebuild.rebuild(connection).is_equal


@pytest.mark.parametrize(("project", "swap"), [("bench", True), ("", False)])
def test_a_killed_cleanup_never_becomes_the_projection(
    store: EventStore, connection: projector.Connection, monkeypatch: pytest.MonkeyPatch, project: str, swap: bool
) -> None:
    put(connection, *sample_events(300))
    with monkeypatch.context() as patch:
        patch.setattr(rebuild, "_drop", killed_in_the_middle)
        with pytest.raises(KeyboardInterrupt):
            rebuild.rebuild(connection, project=project, swap=swap)
    found = rebuild.rebuild(connection, project=project)
    assert (found.events, found.is_equal) == (300, True)


def test_an_abandoned_rebuild_is_not_gone_on_with(
    store: EventStore, connection: projector.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(connection, *sample_events(300))
    projector.advance(connection, rebuild._begin(connection, "")[0])
    with monkeypatch.context() as patch:
        patch.setattr(rebuild, "_drop", killed_in_the_middle)
        with pytest.raises(KeyboardInterrupt):
            rebuild.abandon(connection)
    found = rebuild.rebuild(connection)
    assert (found.events, found.is_equal) == (300, True)


def killed_in_the_middle(connection: projector.Connection, generation: int) -> None:
    connection.execute("DELETE FROM temporality_item WHERE generation = %s", [generation])
    raise KeyboardInterrupt


def test_a_running_rebuild_is_not_abandoned(store: EventStore, connection: projector.Connection) -> None:
    with psycopg.connect(store.database_url, autocommit=True) as other:
        other.execute("SELECT pg_advisory_lock(%s)", [rebuild.LOCK_KEY])
        with pytest.raises(Conflict, match="a rebuild is running"):
            rebuild.abandon(connection)


def test_a_difference_ends_verify_with_an_error_also_as_json(
    store: EventStore, connection: projector.Connection
) -> None:
    put(connection, *sample_events(10))
    assert verified(store)["equal"]
    connection.execute("UPDATE temporality_item SET status = 'succeeded' WHERE kind = 'run'")
    command = [sys.executable, "manage.py", "temporality_rebuild", "--verify", "--json"]
    done = subprocess.run(command, cwd=ROOT, env=store.environment(), capture_output=True, text=True, check=False)
    assert (done.returncode, json.loads(done.stdout)["equal"]) == (1, False)


def test_a_projection_that_was_changed_by_hand_is_found_and_replaced(
    store: EventStore, connection: projector.Connection
) -> None:
    put(connection, *sample_events(300))
    rebuild.rebuild(connection)
    connection.execute("UPDATE temporality_item SET status = 'succeeded' WHERE kind = 'run'")
    assert not rebuild.rebuild(connection, swap=False).is_equal
    rebuild.rebuild(connection)
    assert rebuild.rebuild(connection, swap=False).is_equal

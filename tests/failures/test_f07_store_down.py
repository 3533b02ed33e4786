"""F7. The kernel's PostgreSQL is away before a write: nothing leaves. And after one: its outcome is not lost."""

from __future__ import annotations

import threading

import pytest
from django.db import OperationalError, close_old_connections, connection
from psycopg_pool import PoolTimeout

from kernel_project.devstack.process import Server
from runs.boundary import outcomes
from runs.models import Operation
from tests.boundary_scene import committed, make_scene, perform_now, told
from tests.waiting import until_sync

pytestmark = pytest.mark.usefixtures("committed")
__all__ = ["committed"]

AWAY = (OperationalError, PoolTimeout)


def is_back() -> bool:
    """The pool tries again by its own clock, so a server that runs is not reached at once."""
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
        return True
    except AWAY:
        return False
    finally:
        connection.close()


@pytest.fixture
def impatient(monkeypatch):
    """A pool that gives up soon, so that a test need not wait for it."""
    close_old_connections()
    connection.close()
    monkeypatch.setattr(connection.pool, "timeout", 2.0)


@pytest.mark.parametrize("kind", ["keyed", "probed", "opaque"])
def test_while_it_is_away_nothing_leaves(postgres: Server, impatient, kind):
    scene = make_scene(kind)
    connection.close()
    with postgres.stopped(), pytest.raises(AWAY):
        perform_now(scene.id)
    assert scene.outside.calls == []
    until_sync(is_back)
    assert perform_now(scene.id).state == "succeeded"
    assert len(scene.outside.effects) == 1


def test_an_outcome_is_written_when_it_comes_back(postgres: Server, impatient):
    scene = make_scene("opaque")

    def stops_the_database(dispatch):
        scene.outside.effects.append(dispatch.idempotency_key)
        postgres.stop()
        threading.Timer(1.5, postgres.start).start()
        return "paid"

    scene.outside.plan = [stops_the_database]
    connection.close()
    assert perform_now(scene.id).state == "succeeded"
    assert (scene.outside.calls, len(scene.outside.effects)) == ([1], 1)
    assert told(scene.id) == ["tool.started", "tool.completed"]


def test_an_outcome_outlives_a_database_that_stays_away_for_longer(postgres: Server, impatient, monkeypatch):
    """The activity fails with a retryable error, the engine delivers it again, and what was learnt is settled."""
    monkeypatch.setattr(outcomes, "SETTLE_SECONDS_MAX", 0.5)
    scene = make_scene("opaque")

    def stops_the_database(dispatch):
        scene.outside.effects.append(dispatch.idempotency_key)
        postgres.stop()
        return "paid"

    scene.outside.plan = [stops_the_database]
    connection.close()
    with pytest.raises(AWAY):
        perform_now(scene.id)
    postgres.start()
    until_sync(is_back)
    assert Operation.objects.get(id=scene.id).state == "dispatched"
    assert perform_now(scene.id).state == "succeeded"
    assert (scene.outside.calls, len(scene.outside.effects)) == ([1], 1)


def test_when_both_stores_are_gone_the_row_says_dispatched_and_the_table_decides(
    postgres: Server, impatient, monkeypatch
):
    monkeypatch.setattr(outcomes, "SETTLE_SECONDS_MAX", 0.5)
    monkeypatch.setattr(outcomes.artifacts, "keep_outcome", _gone)
    scene = make_scene("opaque")

    def stops_the_database(dispatch):
        scene.outside.effects.append(dispatch.idempotency_key)
        postgres.stop()
        return "paid"

    scene.outside.plan = [stops_the_database]
    connection.close()
    with pytest.raises(AWAY):
        perform_now(scene.id)
    postgres.start()
    until_sync(is_back)
    assert perform_now(scene.id).state == "uncertain"
    assert len(scene.outside.effects) == 1


def _gone(*_):
    raise OSError("no space left on device")

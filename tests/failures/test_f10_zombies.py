"""F10. A worker that was taken for dead and says that it sends just when its attempt is judged as never sent."""

from __future__ import annotations

import asyncio

import pytest

from runs.boundary import operations, perform
from runs.boundary.operations import Superseded, Unclear
from tests.boundary_scene import committed, dispatched, make_scene, perform_now, quiet, told

pytestmark = pytest.mark.usefixtures("committed")
__all__ = ["committed"]


@pytest.fixture
def wakes(monkeypatch):
    """The first worker says that it sends right after somebody has read that it did not."""
    read = perform._facts

    def facts_then_mark(operation_id):
        facts = read(operation_id)
        if facts.unsent:
            operations.mark_sending(operation_id, facts.operation.attempt)
        return facts

    monkeypatch.setattr(perform, "_facts", facts_then_mark)


def test_a_redelivery_that_lost_against_it_does_not_send_again(wakes):
    scene = make_scene("opaque")
    dispatched(scene.id)
    assert perform_now(scene.id).state == "uncertain"
    assert (scene.outside.calls, scene.row().attempt) == ([], 1)
    assert told(scene.id) == ["tool.started", "tool.failed uncertain"]


def test_a_last_attempt_that_lost_against_it_is_not_told_as_without_effect(wakes, monkeypatch):
    monkeypatch.setattr("runs.boundary.perform.ATTEMPTS_MAX", 1)
    scene = make_scene("opaque")
    dispatched(scene.id)
    assert perform_now(scene.id).state == "uncertain"


def test_a_cancelled_call_that_lost_against_it_is_not_told_as_without_effect(wakes):
    scene = make_scene("opaque")
    given = dispatched(scene.id)
    assert perform._settle_cancelled(Unclear(given, "cancelled", "cancelled")).state == "uncertain"


def test_a_zombie_that_lost_against_the_redelivery_does_not_send():
    scene = make_scene("opaque")
    zombie = dispatched(scene.id)
    again = operations.again(operations.interrupted(scene.id), quiet, unsent=True)
    assert again.attempt == 2
    with pytest.raises(Superseded):
        asyncio.run(zombie.sending())

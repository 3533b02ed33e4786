"""F12. A call that was dispatched just before the cancel, and has not sent its first byte, does not send it."""

from __future__ import annotations

import asyncio
import threading

import pytest
from django.db import connection, transaction

from outbox.contracts import Actor
from runs.boundary import operations, perform
from runs.boundary.contracts import NotSent
from runs.loop import endings
from runs.models import Run
from tests.boundary_scene import at_once, committed, dispatched, make_scene, quiet, told

pytestmark = pytest.mark.usefixtures("committed")
__all__ = ["committed"]


def cancel(scene) -> Run:
    return endings.request_cancel(scene.run.id, scene.project.slug, by=Actor(id="ann", type="human"))


@pytest.mark.parametrize("kind", ["opaque", "probed"])
def test_it_ends_as_failed_without_an_effect(kind):
    scene = make_scene(kind)
    given = dispatched(scene.id)
    cancel(scene)
    settled = asyncio.run(perform.carry_out(given))
    assert (settled.state, scene.outside.calls) == ("failed", [])
    assert scene.row().error_class == "NotSent"
    assert "asked to stop" in scene.row().error_message
    assert told(scene.id) == ["tool.started", "tool.failed none"]


def test_a_mark_that_was_first_makes_the_cancel_wait_for_it():
    scene = make_scene("opaque")
    given = dispatched(scene.id)
    cancelled = threading.Thread(target=lambda: at_once(lambda: cancel(scene)))
    with transaction.atomic():
        operations.mark_sending(given.operation_id, given.attempt)
        cancelled.start()
        cancelled.join(0.3)
        assert cancelled.is_alive()
    cancelled.join(10)
    run = Run.objects.get(id=scene.run.id)
    assert scene.row().sending_at <= run.cancel_requested_at


def test_a_cancel_that_was_first_keeps_the_call_here():
    scene = make_scene("opaque")
    given = dispatched(scene.id)
    tried: list[object] = []
    marking = threading.Thread(
        target=lambda: tried.extend(at_once(lambda: operations.mark_sending(given.operation_id, given.attempt)))
    )
    with transaction.atomic():
        cancel(scene)
        marking.start()
        marking.join(0.3)
        assert marking.is_alive()
    marking.join(10)
    assert isinstance(tried[0], NotSent)
    assert scene.row().sending_at is None


def test_a_stale_attempt_hears_that_it_is_stale_and_not_that_the_run_stops():
    scene = make_scene("opaque")
    given = dispatched(scene.id)
    operations.again(operations.interrupted(scene.id), quiet)
    cancel(scene)
    with pytest.raises(operations.Superseded):
        operations.mark_sending(given.operation_id, given.attempt)
    connection.close()

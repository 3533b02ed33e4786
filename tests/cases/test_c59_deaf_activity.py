"""C59. A tool that ignores cancellation, or takes longer than its time: one effect, and its late finish is evidence."""

from __future__ import annotations

import asyncio
import threading

import pytest
from asgiref.sync import sync_to_async

from runs.boundary import perform as performing
from runs.boundary.effects import python
from runs.models import Operation
from tests.boundary_scene import committed, make_scene, performed
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("committed")
__all__ = ["committed"]


@pytest.fixture
def hasty(monkeypatch):
    monkeypatch.setattr(performing, "TIMEOUT_GRACE_SECONDS", 0.1)
    monkeypatch.setattr(performing, "STOP_SECONDS_MAX", 0.1)


def blocking_scene(gate: threading.Event, entered: threading.Event, monkeypatch, **declared):
    scene = make_scene("opaque", **declared)

    def blocks(dispatch, **_):
        scene.outside.effects.append(dispatch.idempotency_key)
        entered.set()
        assert gate.wait(20)
        return "done at last"

    from dataclasses import replace

    known = python._registered[scene.tool.remote_name]
    monkeypatch.setitem(python._registered, scene.tool.remote_name, replace(known, function=blocks))
    return scene


async def state_of(scene) -> str:
    return (await sync_to_async(Operation.objects.get)(id=scene.id)).state


async def test_a_function_that_blocks_over_its_time_is_uncertain_and_its_finish_settles_it(hasty, monkeypatch):
    gate, entered = threading.Event(), threading.Event()
    scene = await sync_to_async(blocking_scene)(gate, entered, monkeypatch, timeout_seconds=1)
    assert (await performed(scene.id)).state == "uncertain"
    assert (await performed(scene.id)).state == "uncertain"
    gate.set()

    async def reconciled() -> bool:
        return await state_of(scene) == "reconciled"

    await until(reconciled)
    row = await sync_to_async(scene.row)()
    assert (row.verdict, len(scene.outside.effects)) == ("occurred", 1)


async def test_a_cancellation_is_heard_while_the_function_goes_on(hasty, monkeypatch):
    gate, entered = threading.Event(), threading.Event()
    scene = await sync_to_async(blocking_scene)(gate, entered, monkeypatch)
    task = asyncio.create_task(performed(scene.id))
    await asyncio.to_thread(entered.wait, 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await state_of(scene) == "uncertain"
    gate.set()

    async def reconciled() -> bool:
        return await state_of(scene) == "reconciled"

    await until(reconciled)


async def test_a_function_that_ends_within_the_grace_has_its_answer_kept(hasty, monkeypatch):
    monkeypatch.setattr(performing, "STOP_SECONDS_MAX", 10.0)
    gate, entered = threading.Event(), threading.Event()
    scene = await sync_to_async(blocking_scene)(gate, entered, monkeypatch)
    task = asyncio.create_task(performed(scene.id))
    await asyncio.to_thread(entered.wait, 10)
    task.cancel()
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await state_of(scene) == "succeeded"


async def test_a_process_that_must_stop_leaves_the_row_to_the_next_delivery(hasty, monkeypatch):
    gate, entered = threading.Event(), threading.Event()
    scene = await sync_to_async(blocking_scene)(gate, entered, monkeypatch)
    task = asyncio.create_task(performing.perform(scene.id, lambda *_: None, lambda: True))
    await asyncio.to_thread(entered.wait, 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await state_of(scene) == "dispatched"
    gate.set()


async def test_when_all_threads_are_busy_a_call_was_not_sent(monkeypatch):
    monkeypatch.setattr(python, "_free", threading.BoundedSemaphore(1))
    gate, entered = threading.Event(), threading.Event()
    first = await sync_to_async(blocking_scene)(gate, entered, monkeypatch)
    second = await sync_to_async(blocking_scene)(gate, entered, monkeypatch)
    task = asyncio.create_task(performed(first.id))
    await asyncio.to_thread(entered.wait, 10)
    assert (await performed(second.id)).state == "failed"
    assert (await sync_to_async(second.row)()).error_class == "NotSent"
    gate.set()
    assert (await task).state == "succeeded"

"""C59, variant: the effect, then an event loop that is blocked. The engine delivers again; nothing happens twice."""

from __future__ import annotations

import threading
import time

import pytest

from tests.boundary_scene import at_once, committed, make_scene, perform_now
from tests.waiting import until_sync

pytestmark = pytest.mark.usefixtures("committed")
__all__ = ["committed"]


@pytest.mark.parametrize(("kind", "redelivered"), [("opaque", "uncertain"), ("probed", "succeeded")])
def test_a_redelivery_while_the_loop_is_blocked_does_not_repeat_it(kind, redelivered):
    done, go_on = threading.Event(), threading.Event()

    async def blocks(dispatch):
        scene.outside.effects.append(dispatch.idempotency_key)
        done.set()
        while not go_on.is_set():
            time.sleep(0.05)  # the whole loop, heartbeats and all
        return "done at last"

    scene = make_scene(kind, [blocks])
    first = threading.Thread(target=lambda: at_once(lambda: perform_now(scene.id)))
    first.start()
    assert done.wait(20)
    assert perform_now(scene.id).state == redelivered
    go_on.set()
    first.join(20)
    until_sync(lambda: scene.row().state in ("reconciled", "succeeded"))
    row = scene.row()
    assert row.state == "succeeded" or row.verdict == "occurred"
    assert len(scene.outside.effects) == 1

"""F3. The sandbox crashes: a fresh one only when the command is declared replay-safe, and never more than so often."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from runs.boundary.contracts import Dispatch, EffectResult
from runs.boundary.effects import ADAPTERS
from runs.models import Tool
from tests.boundary_scene import committed, dispatched, make_scene, perform_now, told

pytestmark = pytest.mark.usefixtures("committed")
__all__ = ["committed"]


class SandboxCrashed(Exception):
    pass


@pytest.fixture
def crashing(monkeypatch) -> list[int]:
    """A sandbox adapter whose first command crashes after it began; returns the attempts that it has seen."""
    attempts: list[int] = []

    async def perform(dispatch: Dispatch) -> EffectResult:
        await dispatch.sending()
        attempts.append(dispatch.attempt)
        if len(attempts) == 1:
            raise SandboxCrashed("the guard is gone")
        return EffectResult(text="exit code: 0")

    module = ModuleType("crashing_sandbox")
    module.perform = perform  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "crashing_sandbox", module)
    monkeypatch.setitem(ADAPTERS, "sandbox", "crashing_sandbox")
    monkeypatch.setattr("runs.boundary.perform.AGAIN_PAUSES_SECONDS", (0.0,))
    return attempts


def sandboxed(replay_safe: bool):
    scene = make_scene("opaque")
    Tool.objects.filter(id=scene.tool.id).update(kind="sandbox", replay_safe=replay_safe)
    operation = scene.another(text="run it")
    return operation.id


def test_a_command_that_is_not_replay_safe_is_uncertain(crashing):
    operation_id = sandboxed(replay_safe=False)
    assert perform_now(operation_id).state == "uncertain"
    assert crashing == [1]
    assert told(operation_id) == ["tool.started", "tool.failed uncertain"]


def test_a_replay_safe_one_runs_again_in_a_fresh_sandbox(crashing):
    operation_id = sandboxed(replay_safe=True)
    assert perform_now(operation_id).state == "succeeded"
    assert crashing == [1, 2]


def test_the_same_after_the_worker_died_with_it(crashing):
    from runs.boundary import operations

    for replay_safe, state in ((True, "succeeded"), (False, "uncertain")):
        crashing[:] = [0]
        operation_id = sandboxed(replay_safe)
        given = dispatched(operation_id)
        operations.mark_sending(given.operation_id, given.attempt)
        assert perform_now(operation_id).state == state

"""F3. A command that the kernel ended itself (time, memory, disk) may have done anything before: nobody knows."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import ModuleType

import pytest

from runs.boundary import operations
from runs.boundary.contracts import Dispatch, EffectResult, ProbeVerdict
from runs.boundary.effects import ADAPTERS
from runs.boundary.effects.sandbox import answer_of, result_of
from runs.boundary.sandbox import SandboxLimits
from runs.boundary.sandbox.contracts import Left
from runs.models import Tool
from tests.boundary_scene import committed, dispatched, make_scene, perform_now, told
from tests.unit.test_sandbox_tool import SUCCESS

pytestmark = pytest.mark.usefixtures("committed")
__all__ = ["committed"]

ENDS = {
    "time": replace(SUCCESS, exit_code=None, timed_out=True),
    "memory": replace(SUCCESS, exit_code=137, out_of_memory=True),
    "memory of a child": replace(SUCCESS, exit_code=0, out_of_memory=True),
    "disk": replace(SUCCESS, exit_code=None, disk_low=True),
    "killed": replace(SUCCESS, exit_code=None),
}
FAILED = replace(SUCCESS, exit_code=3)


@pytest.fixture
def commands(monkeypatch) -> list:
    """How the next commands end; the last of them again and again."""
    plan: list = []

    async def run(dispatch: Dispatch) -> EffectResult:
        await dispatch.sending()
        return result_of(plan.pop(0) if len(plan) > 1 else plan[0], SandboxLimits())

    module = ModuleType("planned_sandbox")
    module.perform = run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "planned_sandbox", module)
    monkeypatch.setitem(ADAPTERS, "sandbox", "planned_sandbox")
    monkeypatch.setattr("runs.boundary.perform.AGAIN_PAUSES_SECONDS", (0.0,))
    return plan


def command(kind="opaque", **declared):
    scene = make_scene(kind)
    Tool.objects.filter(id=scene.tool.id).update(kind="sandbox", **declared)
    return scene.another(text="run it").id


@pytest.mark.parametrize("end", ENDS)
def test_a_write_is_uncertain(commands, end):
    commands.append(ENDS[end])
    operation_id = command()
    assert perform_now(operation_id).state == "uncertain"
    assert told(operation_id) == ["tool.started", "tool.failed uncertain"]


def test_a_read_has_had_no_effect(commands):
    commands.append(ENDS["time"])
    operation_id = command("read")
    assert perform_now(operation_id).state == "tool_error"
    assert told(operation_id) == ["tool.started", "tool.failed none"]


def test_a_replay_safe_write_runs_again(commands):
    commands.extend([ENDS["time"], SUCCESS])
    assert perform_now(command(replay_safe=True)).state == "succeeded"


def test_a_replay_safe_write_that_never_ends_by_itself_is_uncertain(commands):
    commands.append(ENDS["time"])
    assert perform_now(command(replay_safe=True)).state == "uncertain"


def test_a_replay_safe_write_that_fails_after_it_was_cut_short_is_uncertain(commands):
    commands.extend([ENDS["memory"], FAILED])
    assert perform_now(command(replay_safe=True)).state == "uncertain"


def test_a_command_that_fails_by_itself_answers(commands):
    commands.append(FAILED)
    assert perform_now(command()).state == "tool_error"


def test_an_answer_that_is_written_while_its_caller_is_cancelled_is_uncertain_too(commands):
    given = dispatched(command())
    assert operations.settle_answer(given, result_of(ENDS["time"], SandboxLimits())).state == "uncertain"


def test_what_is_left_of_such_a_command_cannot_tell():
    assert answer_of(Left("ended", ENDS["time"])).verdict == ProbeVerdict.CANNOT_TELL
    assert answer_of(Left("ended", FAILED)).verdict == ProbeVerdict.ONE

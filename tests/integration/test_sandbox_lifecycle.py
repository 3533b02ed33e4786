"""The life of a sandbox is told once, from its creation to its end, whoever finds the end; and what it said is kept."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import OperationalError
from django.db.models import F

from outbox.models import Event
from runs.boundary import artifacts, operations, sandbox_upkeep, workspaces
from runs.boundary.intents import Wanted
from runs.boundary.sandbox import capabilities, lifecycle
from runs.boundary.sandbox.lifecycle import Life
from runs.models import Artifact, Operation, Sandbox, SandboxReport, Tool
from tests.boundary_scene import (
    allow_all,
    committed,
    dispatched,
    make_project,
    make_run,
    perform_now,
    performed,
    propose,
    told,
)
from tests.sandbox_commands import marker, processes_with
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("committed")
__all__ = ["committed"]

WHOLE = ["tool.started", "sandbox.created", "sandbox.destroyed", "tool.completed"]
GONE_WORKER = f"999999.1.{lifecycle.cgroups.pid_namespace()}"


def proposed(script: str, **declared: Any) -> Operation:
    """A call of a sandboxed tool, allowed and not yet made."""
    project = make_project()
    configuration = {"argv": ["/bin/sh", "-c", script], **declared.pop("configuration", {})}
    if not capabilities().met:
        configuration["accept_missing"] = ["tree_limits"]
    tool = Tool.objects.create(
        project=project, kind="sandbox", name="shell", remote_name="shell", exposed_name="shell",
        input_schema={"type": "object"}, definition_digest="d" * 64, configuration=configuration,
        **{"effect": "write", "timeout_seconds": 30, **declared},
    )  # fmt: skip
    allow_all(project)
    run = make_run(project, [tool.name])
    workspaces.ensure(run)
    return propose(run, Wanted("shell", {}))[0]


def end_of(operation_id: UUID, attempt: int = 1) -> dict[str, Any]:
    """What `sandbox.destroyed` of an attempt says."""
    events = Event.objects.filter(operation_id=operation_id, type="sandbox.destroyed").values_list(
        "envelope", flat=True
    )
    (found,) = [data for text in events if (data := json.loads(text)["data"])["attempt"] == attempt]
    return {name: found[name] for name in ("status", "reason", "exit_code", "log_ref") if name in found}


def left_by_a_dead_worker(**declared: Any) -> Operation:
    """A call whose worker died while its command ran."""
    operation = proposed("echo again", **declared)
    given = dispatched(operation.id)
    lifecycle.created(Life.of(given, "bubblewrap"))
    operations.mark_sending(given.operation_id, given.attempt)
    Sandbox.objects.filter(operation_id=operation.id).update(worker=GONE_WORKER)
    return operation


def test_a_command_that_ends_by_itself() -> None:
    operation = proposed("echo hello; exit 0")
    assert perform_now(operation.id).state == "succeeded"
    assert told(operation.id) == WHOLE
    assert end_of(operation.id) == {"status": "ended", "reason": "exit", "exit_code": 0}
    assert not Sandbox.objects.filter(operation_id=operation.id).exists()


def test_a_command_that_its_time_limit_ends() -> None:
    operation = proposed("sleep 30", configuration={"limits": {"wall_seconds": 0.5}})
    assert perform_now(operation.id).state == "uncertain"
    assert end_of(operation.id) == {"status": "killed", "reason": "time limit", "exit_code": None}


def test_a_command_that_could_not_be_executed() -> None:
    operation = proposed("true", configuration={"argv": ["no-such-program"]})
    assert perform_now(operation.id).state == "failed"
    assert end_of(operation.id) == {"status": "ended", "reason": "the command was not executed"}


def test_the_events_hang_on_the_dispatch_and_carry_no_output() -> None:
    operation = proposed("echo a-secret-word")
    perform_now(operation.id)
    started, created, destroyed, completed = (
        json.loads(text)
        for text in Event.objects.filter(operation_id=operation.id)
        .order_by("sequence")
        .values_list("envelope", flat=True)
    )
    assert created["context"]["parent_event_id"] == started["event_id"]
    assert destroyed["data"]["caused_by"] == [created["event_id"]]
    assert created["data"]["driver"] == "bubblewrap"
    assert not any("a-secret-word" in json.dumps(event) for event in (started, created, destroyed, completed))


async def test_a_sandbox_that_crashes_leaves_its_log() -> None:
    word = marker()
    operation = await sync_to_async(proposed)(f"echo so far; touch begun; sleep 30; : {word}")
    task = asyncio.create_task(performed(operation.id))
    await until((_workspace(operation) / "begun").exists)
    for bwrap in _bwraps():
        os.kill(bwrap, signal.SIGKILL)
    assert (await task).state == "uncertain"
    end = await sync_to_async(end_of)(operation.id)
    assert end["status"] == "crashed"
    log = await sync_to_async(_log)(operation, end["log_ref"])
    assert log.startswith("--- stdout, 7 bytes\nso far\n")
    assert processes_with(word) == []


async def test_a_cancelled_command_leaves_what_it_had_said() -> None:
    operation = await sync_to_async(proposed)("echo so far; touch begun; sleep 30")
    task = asyncio.create_task(performed(operation.id))
    await until((_workspace(operation) / "begun").exists)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    end = await sync_to_async(end_of)(operation.id)
    assert (end["status"], end["reason"]) == ("killed", "cancelled")
    assert "so far" in await sync_to_async(_log)(operation, end["log_ref"])


def test_an_end_that_cannot_be_told_does_not_harm_the_result_and_the_sweep_tells_it(monkeypatch) -> None:
    def away(*_: Any) -> None:
        raise OperationalError("the store is away")

    operation = proposed("echo done")
    with monkeypatch.context() as patched:
        patched.setattr(lifecycle, "destroyed", away)
        assert perform_now(operation.id).state == "succeeded"
    assert "sandbox.destroyed" not in told(operation.id)
    monkeypatch.setattr(sandbox_upkeep, "SETTLES_WITHIN", sandbox_upkeep.timedelta(0))
    sandbox_upkeep.sweep()
    assert end_of(operation.id) == {"status": "swept", "reason": "its worker could not say how it ended"}


def test_the_sweep_tells_the_end_of_a_dead_workers_sandbox_once() -> None:
    operation = left_by_a_dead_worker()
    assert sandbox_upkeep.sweep() >= 1
    assert end_of(operation.id) == {"status": "swept", "reason": "its worker died"}
    sandbox_upkeep.sweep()
    assert told(operation.id).count("sandbox.destroyed") == 1
    assert perform_now(operation.id).state == "uncertain"


def test_the_sweep_leaves_what_lives() -> None:
    operation = proposed("true")
    lifecycle.created(Life.of(dispatched(operation.id), "bubblewrap"))
    Sandbox.objects.filter(operation_id=operation.id).update(created_at=F("created_at") - sandbox_upkeep.FOREIGN_AFTER)
    sandbox_upkeep.sweep()
    assert told(operation.id) == ["tool.started", "sandbox.created"]


def test_a_machine_that_did_not_come_back_is_told_when_its_operation_is_over() -> None:
    operation = left_by_a_dead_worker()
    rows = Sandbox.objects.filter(operation_id=operation.id)
    rows.update(place="elsewhere", created_at=F("created_at") - 2 * sandbox_upkeep.FOREIGN_AFTER)
    sandbox_upkeep.sweep()
    assert rows.exists()
    assert perform_now(operation.id).state == "uncertain"
    sandbox_upkeep.sweep()
    assert end_of(operation.id)["reason"] == "its machine did not say how it ended"


def test_a_replay_safe_command_gets_a_fresh_sandbox_and_the_old_one_is_told_as_swept() -> None:
    operation = left_by_a_dead_worker(replay_safe=True)
    assert perform_now(operation.id).state == "succeeded"
    assert end_of(operation.id) == {"status": "swept", "reason": "another attempt began"}
    assert end_of(operation.id, attempt=2)["status"] == "ended"


def test_one_that_is_not_replay_safe_gets_none() -> None:
    operation = left_by_a_dead_worker()
    assert perform_now(operation.id).state == "uncertain"
    assert told(operation.id).count("sandbox.created") == 1


def test_a_worker_says_what_its_machine_can_do() -> None:
    found = sandbox_upkeep.report()
    (report,) = sandbox_upkeep.living_reports()
    assert (report.place, report.sentence) == (lifecycle.place(), found.sentence())
    SandboxReport.objects.update(reported_at=F("reported_at") - sandbox_upkeep.REPORT_LIVES)
    assert sandbox_upkeep.living_reports() == []


def _workspace(operation: Operation) -> Path:
    root: Path = settings.WORKSPACE_ROOT
    return root / operation.project_id / str(operation.run_id)


def _log(operation: Operation, ref: str) -> str:
    digest = ref.rpartition("/")[2]
    assert Artifact.objects.filter(run_id=operation.run_id, kind="log", digest=digest).exists()
    return artifacts.read(operation.run_id, digest).decode()


def _bwraps() -> list[int]:
    """The processes of this process's guards."""
    guards = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    ours = [pid for pid in guards if b"launcher.py" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    return [int(one) for pid in ours for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

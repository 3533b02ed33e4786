"""With the docker driver a command outlives its worker, and what is left of its container ends the doubt about it."""

from __future__ import annotations

from pathlib import Path

import pytest

from outbox.models import Event
from runs.boundary import operations, reconcile, sandbox_upkeep, workspaces
from runs.boundary.effects import sandbox
from runs.boundary.intents import Wanted
from runs.boundary.sandbox import lifecycle
from runs.boundary.sandbox.lifecycle import Life
from runs.models import Operation, Sandbox, Tool
from tests.boundary_scene import (
    allow_all,
    committed,
    dispatched,
    make_project,
    make_run,
    perform_now,
    propose,
    result_of,
    told,
)
from tests.engine_stand_in import BEGAN, CREATED, ENDED, EXITED, NEVER_BEGAN, NEVER_ENDED, RUNNING, StandIn

pytestmark = pytest.mark.usefixtures("committed")
__all__ = ["committed"]

GONE_WORKER = f"999999.1.{sandbox_upkeep.cgroups.pid_namespace()}"


@pytest.fixture
def engine(tmp_path: Path, settings, monkeypatch) -> StandIn:
    folder = tmp_path / "engine"
    folder.mkdir()
    stand_in = StandIn(folder)
    settings.SANDBOX_DRIVER, settings.SANDBOX_ENGINE, settings.SANDBOX_IMAGE = "docker", stand_in.program, "image:1"
    stand_in.answers("logs", "kept by the engine")
    monkeypatch.setattr(sandbox, "PROBE_WAIT_SECONDS", 0.0)
    return stand_in


def proposed(*, allow: bool = True, **declared: object) -> Operation:
    project = make_project()
    tool = Tool.objects.create(
        project=project, kind="sandbox", name="shell", remote_name="shell", exposed_name="shell",
        input_schema={"type": "object"}, definition_digest="d" * 64, configuration={"argv": ["true"]},
        **{"effect": "write", "timeout_seconds": 30, **declared},
    )  # fmt: skip
    if allow:
        allow_all(project)
    run = make_run(project, [tool.name])
    workspaces.ensure(run)
    return propose(run, Wanted("shell", {}))[0]


def left_by_a_dead_worker(**declared: object) -> Operation:
    operation = proposed(**declared)
    given = dispatched(operation.id)
    lifecycle.created(Life.of(given, "docker"))
    operations.mark_sending(given.operation_id, given.attempt)
    Sandbox.objects.filter(operation_id=operation.id).update(worker=GONE_WORKER)
    return operation


def test_the_probe_spares_nobody_a_question(engine: StandIn) -> None:
    operation = proposed(allow=False)
    assert operation.probes
    assert operation.state == "awaiting_approval"


def test_a_command_that_ended_after_its_worker_died_is_settled_by_itself(engine: StandIn) -> None:
    operation = left_by_a_dead_worker()
    engine.inspects(EXITED.replace("3", "0"), BEGAN, ENDED)
    assert perform_now(operation.id).state == "succeeded"
    text = result_of(Operation.objects.get(id=operation.id))["text"]
    assert text.startswith("exit code: 0\n--- stdout, 19 bytes\nkept by the engine\n")
    assert told(operation.id).count("tool.started") == 1


def test_a_command_that_still_runs_is_uncertain_until_it_has_ended(engine: StandIn) -> None:
    operation = left_by_a_dead_worker()
    engine.inspects(RUNNING, BEGAN, NEVER_ENDED)
    assert perform_now(operation.id).state == "uncertain"
    sandbox_upkeep.sweep()
    assert "sandbox.destroyed" not in told(operation.id)
    engine.inspects(EXITED.replace("3", "0"), BEGAN, ENDED)
    assert reconcile.probe_now(operation.id) == "reconciled"
    assert Operation.objects.get(id=operation.id).verdict == "occurred"


def test_a_command_that_was_killed_needs_a_person(engine: StandIn) -> None:
    operation = left_by_a_dead_worker()
    engine.inspects(EXITED.replace("3", "137"), BEGAN, ENDED)
    assert perform_now(operation.id).state == "uncertain"
    assert reconcile.probe_now(operation.id) == "uncertain"


def test_another_engine_that_knows_nothing_of_it_proves_nothing(engine: StandIn) -> None:
    operation = left_by_a_dead_worker()
    engine.answers("inspect", code=1, error="Error: No such object: x")
    assert perform_now(operation.id).state == "uncertain"


def test_an_engine_that_is_away_proves_nothing(engine: StandIn) -> None:
    operation = left_by_a_dead_worker()
    engine.answers("inspect", code=1, error="Cannot connect to the Docker daemon")
    assert perform_now(operation.id).state == "uncertain"


def test_a_container_in_which_nothing_ran_is_removed_before_it_counts(engine: StandIn) -> None:
    operation = left_by_a_dead_worker()
    engine.inspects(CREATED, NEVER_BEGAN, NEVER_ENDED)
    assert perform_now(operation.id).state == "uncertain"  # the deadline is not over: an answer "absent" counts later
    assert ["rm", f"agent-kernel-{operation.id}"] in engine.calls()


def test_the_sweep_tells_the_end_of_a_container_with_its_log(engine: StandIn) -> None:
    operation = left_by_a_dead_worker()
    engine.inspects(EXITED, BEGAN, ENDED)
    sandbox_upkeep.sweep()
    envelope = Event.objects.get(operation_id=operation.id, type="sandbox.destroyed").envelope
    assert '"exit_code":3' in envelope
    assert '"log_ref":"artifact://sha256/' in envelope
    assert '"reason":"its worker died; the container is ended"' in envelope

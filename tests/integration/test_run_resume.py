"""A failed run goes on as the same run; what succeeded or is unclear is not done again, however often it is resumed."""

from __future__ import annotations

import os
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.core.management import call_command
from django.db import connection, transaction
from django.db.models.functions import Now

from kernel_project.primitives.clock import now
from kernel_project.primitives.errors import Conflict, NotFound
from outbox.contracts import Actor
from outbox.models import Event
from runs.loop import endings, resumes, sweeps, temporal
from runs.loop.contracts import FinishInput, ThinkInput, Thought
from runs.loop.turns import open_turn
from runs.models import Artifact, Operation, Run
from tests.boundary_scene import at_once
from tests.kernel import (
    Carrier,
    Ledger,
    begin,
    call,
    calls,
    ended,
    make_project,
    make_tool,
    read,
    rule,
    said,
    says,
    states,
    told,
    writes_to,
)  # fmt: skip

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("temporal_server")]

ANN = Actor(id="ann", type="human")
BROKEN: dict[str, Any] = {"error": {"code": "authentication", "message": "the key is not valid"}}


@pytest.fixture
def ledger(tmp_path):
    return Ledger(tmp_path / "ledger")


@pytest.fixture
def project(ledger):
    project = make_project()

    def lost(dispatch, text):
        ledger.write(dispatch.idempotency_key, text)
        raise ConnectionResetError

    make_tool(project, "refund", writes_to(ledger))
    make_tool(project, "pay", lost)
    rule(project, "*", "allow")
    return project


def resume(run) -> Run:
    return resumes.resume(run.id, run.project_id, ANN)


def rescript(run, turns) -> None:
    """The provider answers otherwise from now on."""
    name = run.agent_version.definition["model"].partition(":")[2]
    path = Path(os.environ["KERNEL_SCRIPTS"]) / name
    path.write_text(yaml.safe_dump({"turns": turns}))
    os.utime(path, (1, 1))


def failed(run, **facts) -> Run:
    """A run that failed, without a worker: its workflow waits for nobody."""
    values = {"failure_code": "model_authentication", "ended_at": Now(), "started_at": Now(), **facts}
    Run.objects.filter(id=run.id).update(state="failed", **values)
    return read(run)


def refusal(run) -> str:
    with pytest.raises(Conflict) as error:
        resume(run)
    return error.value.error_code


def forget_what_it_told(run) -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL kernel.purge = 'on'")
        cursor.execute("DELETE FROM outbox_event WHERE run_id = %s", [run.id])


# These start no worker: they stand before the class, whose worker would take their runs.


def test_only_a_failed_run_that_would_not_fail_again_at_once_is_resumed(project):
    run = begin([says("done")], project=project)
    assert refusal(run) == "not_failed"
    assert refusal(failed(run, failure_code="limit_turns")) == "limit_reached"
    assert refusal(failed(run, resuming_since=Now())) == "resuming"
    failed(run, resuming_since=None)
    Artifact.objects.filter(run=run).update(purged_at=Now(), body=None)
    assert refusal(run) == "purged"
    untold = begin([says("done")], project=project)
    forget_what_it_told(untold)
    assert refusal(failed(untold)) == "purged", "its month of the journal is gone, and it could tell nothing"
    with pytest.raises(Conflict, match="another compensation"):
        resumes._check(Run(state="failed", compensates_id=run.id))
    with pytest.raises(NotFound):
        resumes.resume(run.id, make_project().slug, ANN)
    timed = begin([says("done")], project=project, limits={"wall_seconds_max": 5})
    assert refusal(failed(timed, created_at=now() - timedelta(seconds=6))) == "limit_reached"
    assert not Event.objects.filter(type="run.resumed").exists()


def test_temporal_down_leaves_the_run_failed_and_it_can_be_resumed_later(project, temporal_server):
    run = failed(begin([says("done")], project=project))
    with temporal_server.stopped(), pytest.raises((temporal.Down, temporal.Unclear)):
        resume(run)
    Run.objects.filter(id=run.id, resuming_since__isnull=False).update(resuming_since=now() - timedelta(seconds=60))
    resumes.settle_unclear_resumes()
    assert (read(run).state, read(run).resuming_since, told(run)) == ("failed", None, ["run.started"])


def test_a_resume_that_nobody_confirmed_is_found_out_by_the_sweep_or_by_its_first_turn(project, monkeypatch):
    run = failed(begin([says("done")], project=project))
    _close(run)
    claimed = resumes._claim(run.id, run.project_id, ANN)
    temporal.start_again(resumes._input(claimed))
    temporal.start_again(resumes._input(claimed))
    assert resumes.settle_unclear_resumes() == 0, "it may be on its way"
    Run.objects.filter(id=run.id).update(resuming_since=now() - timedelta(seconds=60))
    assert resumes.settle_unclear_resumes() == 1
    assert (read(run).state, told(run).count("run.resumed")) == ("running", 1)
    run = failed(run, resuming_since=Now(), resumes=2)
    open_turn(ThinkInput(run_id=run.id, turn=1, attempt=1, tools=True, calls_allowed=1), lambda *_: None)
    assert (read(run).state, told(run).count("run.resumed")) == ("running", 2)


def test_an_end_that_an_old_worker_writes_late_does_not_end_the_resumed_run(project):
    run = failed(begin([says("done")], project=project))
    _close(run)
    resume(run)
    endings.finish(FinishInput(run_id=run.id, outcome="failed", code="model_timeout"))
    assert (read(run).state, told(run)) == ("running", ["run.started", "run.resumed"])


def test_an_execution_that_the_run_went_on_without_is_told_to_stop_and_touches_nothing(project):
    run = failed(begin([says("done")], project=project), resumes=2, resuming_since=Now())
    asked = ThinkInput(run_id=run.id, turn=1, attempt=1, tools=True, calls_allowed=1, resumption=1)
    assert open_turn(asked, lambda *_: None) == Thought(kind="stopped")
    assert (read(run).state, read(run).resumes) == ("failed", 2), "its claim is not confirmed by another execution"
    assert sweeps.look(run.id, (), resumption=1).cancel_requested
    assert not sweeps.look(run.id, (), resumption=2).cancel_requested
    Run.objects.filter(id=run.id).update(resuming_since=None)
    assert sweeps.look(run.id, (), resumption=2).cancel_requested, "its claim was given up"
    assert endings.in_flight(run.id, 1) == []


def _close(run) -> None:
    """The execution that failed has ended."""

    async def terminate() -> None:
        await (await temporal._loop.client()).get_workflow_handle(f"run-{run.id}").terminate()

    temporal._loop.run(terminate(), 10)


class TestWithAWorker:
    @pytest.fixture(autouse=True)
    def work(self):
        with Carrier():
            yield

    def test_what_succeeded_and_what_is_unclear_is_not_done_again(self, project, ledger):
        script = [calls(call("refund", text="4711"), call("pay", text="99")), BROKEN]
        run = ended(begin(script, ["refund", "pay"], project=project, on_uncertain="continue"))
        assert (run.state, run.failure_code) == ("failed", "model_authentication")
        again = calls(call("pay", text="99")) | {"text": "I try again"}
        rescript(run, [script[0], again, says("done")])
        answers = at_once(*[lambda: resume(run)] * 4)
        assert sorted(type(one).__name__ for one in answers) == ["Conflict"] * 3 + ["Run"]
        run = ended(run)
        assert (run.state, said(run), run.resumes, run.failure_code) == ("completed", "done", 1, "")
        assert states(run) == [("refund", "succeeded"), ("pay", "uncertain"), ("pay", "blocked")]
        assert len(ledger.lines()) == 2, "one refund, one payment: each left once"
        assert [name for name in told(run) if name.startswith("run.")] == [
            "run.started", "run.failed", "run.resumed", "run.completed",
        ]  # fmt: skip
        event = Event.objects.get(run_id=run.id, type="run.resumed").envelope
        assert '"id":"ann"' in event
        assert '"reason":"model_authentication"' in event

    def test_it_fails_a_second_time_and_is_resumed_a_second_time(self, project):
        run = ended(begin([BROKEN], project=project))
        resume(run)
        run = ended(run)
        assert (run.state, told(run).count("run.failed")) == ("failed", 2)
        rescript(run, [says("at last")])
        out = StringIO()
        call_command("resume_run", str(run.id), by="bob", stdout=out)
        assert "goes on" in out.getvalue()
        assert (ended(run).state, said(run), read(run).resumed_by) == ("completed", "at last", "bob")

    def test_an_agent_that_stops_at_unclear_effects_waits_for_the_verdict(self, project):
        run = ended(begin([calls(call("pay", text="9")), says("ok")], ["pay"], project=project, on_uncertain="fail"))
        assert (run.failure_code, refusal(run)) == ("uncertain_operation", "uncertain_operation")
        from runs.boundary import reconcile

        [unsure] = Operation.objects.filter(run=run, position=1)
        reconcile.resolve(unsure.id, project=project.slug, verdict="occurred", by=ANN, note="seen there")
        resume(run)
        assert (ended(run).state, said(run)) == ("completed", "ok")

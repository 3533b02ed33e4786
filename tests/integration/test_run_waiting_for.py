"""A run that does not move says why, and one whose workflow is gone ends with a name."""

from __future__ import annotations

import pytest

from kernel_project.primitives.clock import now
from runs.loop import temporal, waiting
from runs.models import Operation, Run
from tests.api_scene import make_run
from tests.kernel import (  # fmt: skip
    Carrier,
    begin,
    call,
    calls,
    ended,
    make_agent,
    make_project,
    make_tool,
    read,
    rule,
    says,
    waits,
)
from tests.waiting import until_sync

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("temporal_server")]


@pytest.fixture
def project():
    project = make_project()
    make_tool(project, "gated", lambda dispatch, text: text)
    return project


@pytest.fixture
def impatient(monkeypatch):
    for name in ("QUIET", "UNTAKEN"):
        monkeypatch.setattr(waiting, name, getattr(waiting, name) * 0)


def reason(run) -> str:
    waiting.explain()
    return read(run).waiting_for


def test_an_approval_and_an_uncertain_call_are_named(project):
    def unclear(dispatch, text):
        raise ConnectionResetError

    make_tool(project, "pay", unclear)
    rule(project, "pay", "allow")
    with Carrier():
        gated = begin([calls(call("gated", text="a"), call("gated", text="b"))], ["gated"], project=project)
        unsure = begin([calls(call("pay", text="a"))], ["pay"], project=project)
        waits(gated, "awaiting_approval", "awaiting_approval")
        waits(unsure, "uncertain")
    assert waiting.explain() == 2
    assert read(gated).waiting_for == "approval: gated and 1 more"
    assert read(unsure).waiting_for == "uncertain operation: pay"


def test_a_back_off_says_until_when(project):
    script = [{"error": {"code": "rate_limited", "message": "slow down", "retry_after": 600}}]
    with Carrier():
        run = begin(script, project=project)
        until_sync(lambda: Operation.objects.filter(run=run, state="failed").exists())
        assert reason(run).startswith("model back-off: rate_limited until ")


def test_without_a_worker_the_run_says_so_and_forgets_it_when_one_comes(project, impatient):
    run = begin([says("done")], project=project)
    until_sync(lambda: reason(run).startswith("no worker takes its work since "))
    with Carrier():
        assert ended(run).waiting_for == ""


def test_with_temporal_down_the_run_says_so(project, impatient, temporal_server):
    run = begin([says("done")], project=project)
    with temporal_server.stopped():
        until_sync(lambda: reason(run) == "Temporal unreachable", 40)


def test_a_run_whose_workflow_was_ended_in_temporal_ends_with_a_name(project, impatient):
    make_tool(project, "pay", lambda dispatch, text: text, idempotent_for_seconds=60)
    run = begin([says("done")], project=project)

    async def terminate() -> None:
        await (await temporal._loop.client()).get_workflow_handle(f"run-{run.id}").terminate()

    temporal._loop.run(terminate(), 10)
    waiting.explain()
    assert (read(run).state, read(run).failure_code) == ("failed", "workflow_lost")


def test_a_run_that_is_to_stop_names_the_call_that_still_runs():
    """C59: stop requested, tool still running, until it is known."""
    run = Run(state="cancelling", cancel_requested_at=now(), created_at=now())
    calls = [Operation(state="dispatched", name="slow"), Operation(state="succeeded", name="done")]
    assert waiting._reason(run, calls, set()) == "stop requested, still running: slow"
    run.cancel_requested_at -= 2 * waiting.STOPPING
    run.created_at = run.cancel_requested_at
    for one in calls:
        one.proposed_at = run.created_at
    assert waiting._reason(run, calls, set()) is None, "by now Temporal is asked"


def test_a_moving_run_waits_for_nothing(project):
    with Carrier():
        run = begin([says("done") | {"delay_seconds": 1}], project=project)
        assert reason(run) == ""
        ended(run)


def test_a_workflow_whose_task_fails_says_with_what(project, impatient, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("a fault in the loop")

    monkeypatch.setattr("runs.loop.agent_loop.begin", broken)
    with Carrier():
        run = begin([says("done")], project=project)
        until_sync(lambda: reason(run) == "failing workflow task: a fault in the loop")
        monkeypatch.undo()
        assert ended(run).state == "completed"


class TestMany:
    """However many runs do not move, each of them is explained within a few ticks."""

    @pytest.fixture
    def many(self, project, impatient, monkeypatch):
        monkeypatch.setattr(waiting, "LOOKS_MIN", 2)
        monkeypatch.setattr(waiting, "TICKS_MAX", 3)
        version = make_agent(project, [says("done")])
        return [make_run(version) for _ in range(9)]

    def test_a_tick_asks_about_those_that_were_not_asked_about_for_the_longest_time(self, many, monkeypatch):
        asked = []

        def look(run_ids):
            asked.append(list(run_ids))
            return [temporal.Sight("running", untaken_since=now()) for _ in run_ids]

        monkeypatch.setattr(temporal, "look_at_all", look)
        assert [waiting.explain() for _ in range(3)] == [3, 6, 9]
        assert sorted(run_id for batch in asked for run_id in batch) == sorted(run.id for run in many)
        assert all(read(run).waiting_for.startswith("no worker takes its work") for run in many)
        waiting.explain()
        assert asked[3] == asked[0]

    def test_is_temporal_away_it_is_asked_once_and_every_run_says_so(self, many, temporal_server):
        with temporal_server.stopped():
            assert waiting.explain() == len(many)
        assert {read(run).waiting_for for run in many} == {"Temporal unreachable"}

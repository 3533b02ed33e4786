"""A call that another agent carries out is a run of its own: started once, waited for, told as data, and stopped."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db.models.functions import Now

from kernel_project.primitives.errors import Conflict, Invalid
from outbox.contracts import Actor
from outbox.models import Event
from runs import registry
from runs.boundary.models.contracts import ModelAnswer, ToolCall, Usage
from runs.boundary.tool_names import exposed_name
from runs.contracts import AgentDefinition
from runs.loop import delegations, endings, starts, temporal, transcripts, waiting, workflows
from runs.loop.contracts import DelegateInput, FinishInput, ThinkInput
from runs.loop.turns import close_turn, confirm_resume, open_turn
from runs.models import News, Operation, Run, Tool
from runs.registry_contracts import ProjectFile
from tests.api_client import api_for
from tests.kernel import (  # fmt: skip
    Carrier,
    begin,
    call,
    calls,
    decide,
    ended,
    hangs,
    make_agent,
    make_project,
    make_tool,
    read,
    rule,
    said,
    says,
    states,
    told,
    tool_calls,
    waits,
)
from tests.waiting import until_sync

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("temporal_server")]

ANN = Actor(id="ann", type="human")


@pytest.fixture
def project():
    project = make_project()
    make_tool(project, "gated", lambda dispatch, text: f"wrote {text}")
    make_tool(project, "hangs", hangs, effect="read")
    return project


def helper(project, turns, tools=(), **more):
    """An agent that others may delegate to, and its name."""
    agent = make_agent(project, turns, tools, **more).agent
    registry._save_delegates(project, "x", AgentDefinition(model="scripted:x", delegates=(agent.name,)))
    return agent.name


def delegate(agent, task="look it up"):
    return call(exposed_name("agent", agent), task=task)


def parent_of(project, agent, *more, **definition):
    return begin([calls(delegate(agent), *more), says("done")], project=project, delegates=(agent,), **definition)


def child(run) -> Run:
    until_sync(lambda: Run.objects.filter(parent_id=run.id).exclude(state="starting").exists(), 30)
    return Run.objects.get(parent_id=run.id)


# These start no worker: they stand before the classes, whose workers would take their runs.


def dispatched(project, agent, **definition) -> tuple[Run, Operation]:
    """A run whose model asked for another agent, as the first turn leaves it; no workflow goes on with it."""
    run = parent_of(project, agent, **definition)
    asked = ThinkInput(run_id=run.id, turn=1, attempt=1, tools=True, calls_allowed=9)
    question = open_turn(asked, lambda *_: None)
    wanted = ToolCall(id="1", name=exposed_name("agent", agent), arguments='{"task": "look it up"}')
    answer = ModelAnswer(
        text="", calls=(wanted,), finish_reason="tool_calls", usage=Usage(), model="m", provider="p", seconds=0.1
    )
    close_turn(asked, question, answer)
    return read(run), tool_calls(run)[0]


def bring_on(run, operation, **more):
    return delegations.delegate(DelegateInput(run_id=run.id, operation_id=operation.id, **more), lambda *_: None)


class Killed(BaseException):
    """The process is gone."""


def killed(*_args, **_more):
    raise Killed


@pytest.mark.parametrize(
    "place",
    [
        "runs.loop.delegations._bring_on",
        "runs.loop.temporal.start",
        "runs.loop.starts.confirm",
        "runs.loop.delegations._tell",
    ],
)
def test_a_worker_killed_between_two_writes_leaves_one_child(project, monkeypatch, place):
    run, operation = dispatched(project, helper(project, [says("found")]))
    with monkeypatch.context() as broken:
        broken.setattr(place, killed)
        with pytest.raises(Killed):
            bring_on(run, operation)
    monkeypatch.setattr(starts, "UNCLEAR_AFTER_SECONDS", 0.0)
    ticket = bring_on(run, operation)
    assert (ticket.state, ticket.ready, ticket.delegated) == ("dispatched", False, True)
    bring_on(run, operation)
    [only] = Run.objects.filter(parent_id=run.id)
    assert (only.parent_operation_id, only.depth, only.started_by) == (operation.id, 1, run.started_by)
    assert told(run).count("delegation.started") == 1
    assert told(only) == ["run.started"]


def test_a_worker_killed_before_the_end_is_written_takes_it_up_once(project, monkeypatch):
    run, operation = dispatched(project, helper(project, [says("found")]))
    bring_on(run, operation)
    endings.finish(FinishInput(run_id=child(run).id, outcome="failed", code="broken", message="it broke"))
    with monkeypatch.context() as broken:
        broken.setattr("runs.boundary.operations.settle_answer", killed)
        with pytest.raises(Killed):
            bring_on(run, operation)
    assert bring_on(run, operation).state == "tool_error"
    assert bring_on(run, operation).state == "tool_error"
    assert told(run).count("delegation.failed") == 1
    assert told(run).count("tool.failed") == 1
    assert Run.objects.filter(parent_id=run.id).count() == 1


def test_a_child_that_ends_between_two_tries_to_take_up_its_end_is_told_once(project, monkeypatch):
    run, operation = dispatched(project, helper(project, [says("found")]))
    bring_on(run, operation)
    endings.request_cancel(run.id, project.slug, ANN)
    with monkeypatch.context() as broken:
        broken.setattr("runs.boundary.operations.settle_answer", killed)
        with pytest.raises(Killed):
            delegations._give_up(operation.id)
    endings.finish(FinishInput(run_id=child(run).id, outcome="cancelled"))
    delegations._give_up(operation.id)
    assert Operation.objects.get(id=operation.id).state == "tool_error"
    assert told(run).count("delegation.failed") == 1


def test_an_end_that_nobody_told_is_told_again_and_shown(project, monkeypatch):
    run, operation = dispatched(project, helper(project, [says("found")]))
    bring_on(run, operation)
    below = child(run)
    endings.finish(FinishInput(run_id=below.id, outcome="completed"))
    News.objects.filter(run_id=run.id).delete()  # an older build writes none
    Run.objects.filter(id=below.id).update(ended_at=Now() - 2 * waiting.UNTOLD)
    monkeypatch.setattr(temporal, "look_at_all", lambda ids: [temporal.Sight("running") for _ in ids])
    waiting.explain()
    assert read(run).waiting_for == f"child run: {below.id} (completed)"
    assert News.objects.filter(run_id=run.id).exists()


def test_a_cancel_reaches_a_child_that_is_being_resumed(project):
    run, operation = dispatched(project, helper(project, [says("found")]))
    bring_on(run, operation)
    below = child(run)
    endings.finish(FinishInput(run_id=below.id, outcome="failed", code="broken", message="it broke"))
    Run.objects.filter(id=below.id).update(resuming_since=Now(), resumes=1, resumed_by="ann", resumed_by_type="human")
    endings.request_cancel(run.id, project.slug, ANN)
    assert not confirm_resume(below.id, 1)
    assert read(below).state == "failed"


def test_a_run_with_a_limit_on_cost_starts_no_child_whose_price_nobody_knows(project):
    agent = helper(project, [says("found")])
    run, _ = dispatched(project, agent)
    delegations._check_price(run, agent)
    run.agent_version.definition["limits"]["cost_max"] = "5"
    with pytest.raises(Conflict, match="has no price"):
        delegations._check_price(run, agent)


def test_a_run_that_cannot_be_explained_hides_no_other(project, monkeypatch):
    agent = helper(project, [says("found")])
    bad, good = parent_of(project, agent), parent_of(project, agent)
    sight = temporal.Sight("running")
    monkeypatch.setattr(temporal, "look_at_all", lambda ids: [sight for _ in ids])

    def seen(run, _sight):
        if run.id == bad.id:
            raise ValueError("odd")
        return "seen"

    monkeypatch.setattr(waiting, "_seen", seen)
    waiting._ask_temporal([read(bad), read(good)])
    assert read(good).waiting_for == "seen"
    assert read(bad).waiting_for == "cannot be explained: ValueError, see the log"


def test_limits_are_told_to_the_model_and_start_nothing(project, settings):
    agent = helper(project, [says("found")])
    run, operation = dispatched(project, agent, limits={"children_max": 0})
    assert bring_on(run, operation).state == "failed"
    assert "may let other agents do 0 tasks" in Operation.objects.get(id=operation.id).error_message
    run, operation = dispatched(project, agent)
    settings.KERNEL_CHILD_DEPTH_MAX = 0
    assert bring_on(run, operation).state == "failed"
    assert Operation.objects.get(id=operation.id).error_class == "too_deep"
    assert not Run.objects.filter(parent_id__isnull=False).exists()


def test_nothing_is_started_for_a_run_that_is_to_stop_or_whose_time_is_over(project):
    agent = helper(project, [says("found")])
    run, operation = dispatched(project, agent)
    assert bring_on(run, operation, over=True).state == "failed"
    run, operation = dispatched(project, agent)
    bring_on(run, operation)
    endings.request_cancel(run.id, project.slug, ANN, "enough")
    assert (child(run).state, child(run).cancel_reason) == ("cancelling", "enough")
    endings.finish(FinishInput(run_id=child(run).id, outcome="cancelled"))
    [ticket] = [bring_on(run, operation)]
    assert ticket.state == "tool_error"


def test_a_late_parent_starts_no_child_although_nobody_said_that_its_time_is_over(project):
    run, operation = dispatched(project, helper(project, [says("found")]), limits={"wall_seconds_max": 60})
    Run.objects.filter(id=run.id).update(created_at=run.created_at - timedelta(seconds=61))
    assert bring_on(run, operation).state == "failed"
    assert Operation.objects.get(id=operation.id).error_class == "withdrawn"
    assert not Run.objects.filter(parent_id=run.id).exists()


def test_the_api_and_the_console_show_parent_and_children(project, admin_client):
    run, operation = dispatched(project, helper(project, [says("found")]))
    bring_on(run, operation)
    api = api_for(project)
    [item] = api.get(f"/runs/{run.id}/children").data["items"]
    assert (item["id"], item["parent_id"], item["depth"]) == (str(child(run).id), str(run.id), 1)
    assert item["parent_operation_id"] == str(operation.id)
    assert api_for(make_project()).get(f"/runs/{run.id}/children").status_code == 404
    assert str(child(run).id) in admin_client.get(f"/admin/runs/run/{run.id}/change/").content.decode()
    assert str(run.id) in admin_client.get(f"/admin/runs/run/{child(run).id}/change/").content.decode()


def test_temporal_down_starts_no_child_and_is_tried_again(project, temporal_server, monkeypatch):
    run, operation = dispatched(project, helper(project, [says("found")]))
    with monkeypatch.context() as broken:
        broken.setattr(temporal, "start", lambda given: (_ for _ in ()).throw(temporal.Down("it is away")))
        with pytest.raises(temporal.Down):
            bring_on(run, operation)
    assert not Run.objects.filter(parent_id=run.id).exists()
    bring_on(run, operation)
    assert child(run).state == "running"


def test_a_run_that_is_lost_tells_its_children_to_stop(project):
    run, operation = dispatched(project, helper(project, [says("found")]))
    bring_on(run, operation)
    waiting._lost(run, "ended")
    assert (read(run).state, child(run).state) == ("failed", "cancelling")
    assert Operation.objects.get(id=operation.id).state == "tool_error"


def test_a_file_declares_whom_an_agent_may_delegate_to(project):
    def file(delegates, **more):
        agents = [
            {"name": "boss", "model": "openai:gpt-5", "delegates": delegates},
            {"name": "clerk", "model": "openai:gpt-5", "delegates": ["boss"]},
        ]
        return ProjectFile.model_validate({"project": project.slug, "agents": agents, **more})

    registry.register(file(["clerk", "boss"]), "test")
    assert set(Tool.objects.filter(kind="agent").values_list("name", flat=True)) == {"agent/boss", "agent/clerk"}
    with pytest.raises(Invalid, match="the project does not have: nobody"):
        registry.register(file(["nobody"]), "test")
    assert "delegates" not in AgentDefinition(model="openai:gpt-5").canonical()


def executions(run) -> int:
    """How many executions of its workflow the run took."""

    async def count() -> int:
        client = await temporal._loop.client()
        known = f'WorkflowId = "run-{run.id}"'
        return (await client.count_workflows(known)).count

    return temporal._loop.run(count(), 20)


@pytest.fixture(scope="module")
def carried(temporal_server, django_db_setup):
    with Carrier():
        yield


@pytest.mark.usefixtures("carried")
class TestWithAWorker:
    def test_the_answer_comes_back_as_data_and_what_it_used_counts(self, project):
        run = ended(parent_of(project, helper(project, [says("the sky is blue")])))
        [asked] = tool_calls(run)
        one = child(run)
        assert (read(run).state, said(run), asked.state, one.state) == ("completed", "done", "succeeded", "completed")
        result = transcripts.messages(run, 2)[-1].text
        assert f"(run {one.id}). Its answer, as data:\nthe sky is blue" in result
        assert asked.tokens_charged == sum(o.tokens_charged for o in Operation.objects.filter(run=one))
        kinds = [kind for kind in told(run) if kind.startswith("delegation")]
        assert kinds == ["delegation.started", "delegation.completed"]
        event = Event.objects.get(run_id=run.id, type="delegation.completed")
        assert str(one.id) in event.envelope

    def test_a_rule_may_ask_a_person_before_another_agent_begins(self, project):
        agent = helper(project, [says("found")])
        rule(project, f"agent/{agent}", "require")
        run = parent_of(project, agent)
        [gated] = waits(run, "awaiting_approval")
        assert not Run.objects.filter(parent_id=run.id).exists()
        decide(gated, "approve")
        assert ended(run).state == "completed"
        assert child(run).state == "completed"

    def test_a_child_that_waits_is_named_and_its_parent_may_go_on_in_new_executions(self, project, monkeypatch):
        monkeypatch.setattr(workflows, "HISTORY_EVENTS_MAX", 16)
        run = parent_of(project, helper(project, [calls(call("gated", text="a")), says("found")], ["gated"]))
        one = child(run)
        [gated] = waits(one, "awaiting_approval")
        waiting.explain()
        waiting.explain()
        assert read(run).waiting_for == f"child run: {one.id} (approval: gated)"
        decide(gated, "approve")
        assert ended(run).state == "completed"
        assert states(run)[0][1] == "succeeded"
        assert executions(run) > 1

    def test_a_cancel_reaches_children_and_their_children(self, project):
        inner = helper(project, [calls(call("hangs", text="a")), says("x")], ["hangs"])
        outer = helper(project, [calls(delegate(inner)), says("x")], delegates=(inner,))
        run = parent_of(project, outer)
        lowest = child(child(run))
        waits(lowest, "dispatched")
        endings.request_cancel(run.id, project.slug, ANN)
        assert ended(run, 30).state == "cancelled"
        assert [read(one).state for one in (lowest, child(run))] == ["cancelled", "cancelled"]
        assert states(run)[0][1] == "tool_error"

    def test_a_child_that_fails_or_is_stopped_is_told_to_the_model(self, project):
        failing = helper(project, [{"error": {"code": "authentication", "message": "no key"}}])
        hanging = helper(project, [calls(call("hangs", text="a"))], ["hangs"])
        run = begin(
            [calls(delegate(failing), delegate(hanging)), says("done")], project=project, delegates=(failing, hanging)
        )
        until_sync(
            lambda: Run.objects.filter(parent_id=run.id, agent_version__agent__name=hanging, turn=1).exists(), 30
        )
        stopped = Run.objects.get(parent_id=run.id, agent_version__agent__name=hanging)
        endings.request_cancel(stopped.id, project.slug, ANN)
        assert ended(run).state == "completed"
        first, second = (message.text for message in transcripts.messages(run, 2)[-2:])
        assert "did not finish" in first
        assert "model_authentication" in first
        assert "was stopped" in second

    def test_the_time_of_the_parent_is_the_time_of_its_children(self, project):
        hanging = helper(project, [calls(call("hangs", text="a"))], ["hangs"])
        run = parent_of(project, hanging, limits={"wall_seconds_max": 2})
        assert ended(run, 40).failure_code == "limit_wall_time"
        assert child(run).state == "cancelled"
        assert states(run)[0][1] == "tool_error"

"""Runs of every shape, brought so far that their history is worth keeping: to record and to replay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from outbox.contracts import Actor
from runs.boundary import reconcile
from runs.boundary.delegates import SERVER, tool_name, tool_values
from runs.boundary.tool_names import exposed_name
from runs.loop import endings, messages, resumes
from runs.models import Operation, Project, Run, Tool
from tests.kernel import begin, call, calls, decide, ended, make_agent, make_tool, rule, says, waits
from tests.waiting import until_sync

ANN = Actor(id="ann", type="human")


@dataclass(frozen=True)
class Shape:
    """`make` starts a run and leaves it where its history is taken."""

    make: Callable[[Project], Run]
    history_events_max: int = 8_000


def _tools(project: Project) -> None:
    def unclear(dispatch: object, text: str) -> str:
        raise ConnectionResetError

    make_tool(project, "read", lambda dispatch, text: f"read {text}", effect="read")
    make_tool(project, "quick", lambda dispatch, text: text, effect="read", configuration={"local": True})
    make_tool(project, "gated", lambda dispatch, text: f"wrote {text}")
    make_tool(project, "unclear", unclear)
    rule(project, "unclear", "allow")


def _run(project: Project, script: list, **more: object) -> Run:
    _tools(project)
    return begin(script, ["read", "quick", "gated", "unclear"], project=project, **more)


def plain(project: Project) -> Run:
    return ended(_run(project, [calls(call("read", text="a"), call("quick", text="b")), says("done")]))


def back_off(project: Project) -> Run:
    failing = {"code": "rate_limited", "message": "slow down", "retry_after": 0.1, "attempts": 1}
    return ended(_run(project, [says("done") | {"error": failing}]))


def limit(project: Project) -> Run:
    return ended(_run(project, [{"repeat": 2, **calls(call("read", text="a"))}, says("x")], limits={"turns_max": 2}))


def waiting(project: Project) -> Run:
    run = _run(project, [calls(call("gated", text="a"), call("read", text="b")), says("done")])
    waits(run, "awaiting_approval", "succeeded")
    return run


def decided(project: Project) -> Run:
    run = waiting(project)
    decide(waits(run, "awaiting_approval", "succeeded")[0], "approve")
    return ended(run)


def timed_out(project: Project) -> Run:
    rule(project, "gated", "require", deadline_seconds=1)
    return ended(_run(project, [calls(call("gated", text="a")), says("done")]))


def uncertain(project: Project) -> Run:
    run = _run(project, [calls(call("unclear", text="a")), says("done")])
    waits(run, "uncertain")
    return run


def reconciled(project: Project) -> Run:
    run = uncertain(project)
    (unsure,) = waits(run, "uncertain")
    reconcile.resolve(unsure.id, project=project.slug, verdict="occurred", by=ANN, note="seen there")
    return ended(run)


def cancelled(project: Project) -> Run:
    run = waiting(project)
    endings.request_cancel(run.id, project.slug, by=ANN)
    return ended(run)


def continued(project: Project) -> Run:
    return ended(_run(project, [{"repeat": 4, **calls(call("read", text="a"))}, says("done")]))


def out_of_time(project: Project) -> Run:
    """The run's time is over while a person is waited for."""
    script = [calls(call("gated", text="a"), call("read", text="b")), says("gave up")]
    return ended(_run(project, script, limits={"wall_seconds_max": 2}))


def out_of_tokens(project: Project) -> Run:
    return ended(_run(project, [calls(call("read", text="a")), says("so far")], limits={"tokens_max": 9_000}))


def heard(project: Project) -> Run:
    """A message came while the model gave its last answer."""
    run = _run(project, [says("first") | {"delay_seconds": 2}, says("second")])
    until_sync(lambda: Operation.objects.filter(run=run).exists())
    messages.say(run.id, project.slug, "and then?", ANN)
    return ended(run)


def resumed(project: Project) -> Run:
    """It stopped at an unclear effect, and goes on after a person's verdict: the execution from there on."""
    run = ended(_run(project, [calls(call("unclear", text="a")), says("done")], on_uncertain="fail"))
    [unsure] = Operation.objects.filter(run=run, state="uncertain")
    reconcile.resolve(unsure.id, project=project.slug, verdict="occurred", by=ANN, note="seen there")
    resumes.resume(run.id, project.slug, ANN)
    return ended(run)


def _parent(project: Project, script: list) -> Run:
    """A run that lets another agent do a task."""
    _tools(project)
    agent = make_agent(project, script, ["gated"]).agent.name
    Tool.objects.create(project=project, name=tool_name(agent), **tool_values(agent))
    asks = calls(call(exposed_name(SERVER, agent), task="a"), call("read", text="b"))
    return begin([asks, says("done")], ["read"], project=project, delegates=[agent])


def child(project: Project) -> Run:
    """The other agent waits for a person meanwhile."""
    run = _parent(project, [calls(call("gated", text="a")), says("found")])
    until_sync(lambda: Run.objects.filter(parent_id=run.id).exists(), 30)
    one = Run.objects.get(parent_id=run.id)
    decide(waits(one, "awaiting_approval")[0], "approve")
    return ended(run)


def child_cancelled(project: Project) -> Run:
    run = _parent(project, [calls(call("gated", text="a")), says("found")])
    waits(run, "dispatched", "succeeded")
    until_sync(lambda: Run.objects.filter(parent_id=run.id, turn=1).exists(), 30)
    waits(Run.objects.get(parent_id=run.id), "awaiting_approval")
    endings.request_cancel(run.id, project.slug, by=ANN)
    return ended(run)


SHAPES = {
    "plain": Shape(plain),
    "back-off": Shape(back_off),
    "limit": Shape(limit),
    "waiting": Shape(waiting),
    "decided": Shape(decided),
    "timed-out": Shape(timed_out),
    "uncertain": Shape(uncertain),
    "reconciled": Shape(reconciled),
    "cancelled": Shape(cancelled),
    "out-of-time": Shape(out_of_time),
    "out-of-tokens": Shape(out_of_tokens),
    "heard": Shape(heard),
    "resumed": Shape(resumed),
    "child": Shape(child),
    "child-continued": Shape(child, history_events_max=16),
    "child-cancelled": Shape(child_cancelled),
    "continued": Shape(continued, history_events_max=20),
}

"""C57. A run goes on in a new execution before its history grows too long, and loses nothing on the way."""

from __future__ import annotations

import pytest

from outbox.contracts import Actor
from runs.boundary import reconcile
from runs.loop import endings, temporal, workflows
from tests.kernel import (
    Ledger,
    begin,
    call,
    calls,
    decide,
    ended,
    make_project,
    make_tool,
    rule,
    said,
    says,
    states,
    told,
    waits,
    writes_to,
)  # fmt: skip
from tests.waiting import until_sync

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("carrier")]

EVENTS_MAX = 30  # instead of thousands


@pytest.fixture(autouse=True)
def short_histories(monkeypatch):
    monkeypatch.setattr(workflows, "HISTORY_EVENTS_MAX", EVENTS_MAX)


@pytest.fixture
def ledger(tmp_path):
    return Ledger(tmp_path / "ledger")


@pytest.fixture
def project(ledger):
    project = make_project()
    make_tool(project, "note", writes_to(ledger), idempotent_for_seconds=3600)
    make_tool(project, "gated", writes_to(ledger))
    return project


def executions(run) -> list[int]:
    """The length of the history of each execution of the run's workflow, the newest first."""

    async def read() -> list[int]:
        client = await temporal._loop.client()
        found = [one async for one in client.list_workflows(f'WorkflowId = "run-{run.id}"')]
        return [one.history_length for one in sorted(found, key=lambda one: one.start_time, reverse=True)]

    return temporal._loop.run(read(), 20)


def test_a_run_of_many_turns_keeps_its_id_its_counters_and_its_effects(project, ledger):
    script = [{"repeat": 20, **calls(call("note", text="{turn}"))}, says("done")]
    run = ended(begin(script, ["note"], project=project, limits={"tool_calls_max": 20}))
    assert (run.failure_code, said(run)) == ("limit_tool_calls", "done")
    assert [line.split()[1] for line in ledger.lines()] == [str(number) for number in range(20)]
    until_sync(lambda: len(executions(run)) > 2)
    assert max(executions(run)) < 2 * EVENTS_MAX
    assert told(run).count("run.started") == 1


def test_waiting_requests_and_their_news_survive_the_change(project, ledger):
    """Wakes make the history long while five requests wait; each decision still reaches its call."""
    script = [calls(*[call("gated", text=text) for text in "abcde"]), says("done")]
    run = begin(script, ["gated"], project=project)
    gated = waits(run, *["awaiting_approval"] * 5)
    for operation in gated[:4]:
        for _ in range(6):
            temporal.wake(run.id)
        decide(operation, "approve")
        until_sync(lambda operation=operation: _state(operation) == "succeeded")
    until_sync(lambda: len(executions(run)) > 1)
    decide(gated[4], "reject", "no")
    assert ended(run).state == "completed"
    assert [state for _, state in states(run)] == ["succeeded"] * 4 + ["rejected"]
    assert len(ledger.lines()) == 4


def _state(operation) -> str:
    operation.refresh_from_db()
    return operation.state


def test_an_uncertain_call_and_a_cancel_survive_the_change(project, ledger):
    def unclear(dispatch, text):
        raise ConnectionResetError

    make_tool(project, "pay", unclear)
    rule(project, "pay", "allow")
    run = begin(
        [calls(call("pay", text="a"), call("gated", text="b")), says("never")], ["pay", "gated"], project=project
    )
    unsure, _ = waits(run, "uncertain", "awaiting_approval")
    for _ in range(8):
        temporal.wake(run.id)
        until_sync(lambda: True)
    reconcile.resolve(unsure.id, project=project.slug, verdict="occurred", by=Actor("ann", "human"), note="seen there")
    waits(run, "reconciled", "awaiting_approval")
    endings.request_cancel(run.id, project.slug, by=Actor("ann", "human"))
    assert ended(run).state == "cancelled"
    assert states(run) == [("pay", "reconciled"), ("gated", "withdrawn")]

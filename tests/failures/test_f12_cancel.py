"""F12. Cancelling a run: no effect starts after the request, what was done stays visible, nothing hangs."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connection

from approvals.models import Approval
from kernel_project.primitives.errors import Conflict, NotFound
from outbox.contracts import Actor
from outbox.models import Event
from runs.boundary import operations
from runs.loop import endings, temporal
from runs.models import News, Operation
from tests.kernel import (
    Ledger,
    begin,
    call,
    calls,
    decide,
    ended,
    hangs,
    make_project,
    make_tool,
    read,
    says,
    states,
    told,
    tool_calls,
    waits,
    writes_to,
)  # fmt: skip
from tests.waiting import until_sync

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("carrier")]

ANN = Actor(id="ann", type="human")


@pytest.fixture
def ledger(tmp_path):
    return Ledger(tmp_path / "ledger")


@pytest.fixture
def project():
    return make_project()


def cancel(run, reason=""):
    return endings.request_cancel(run.id, run.project_id, by=ANN, reason=reason)


def test_during_a_model_call(project):
    run = begin([says("late") | {"delay_seconds": 60}], project=project)
    until_sync(lambda: Operation.objects.filter(run=run, state="dispatched").exists())
    assert cancel(run).state == "cancelling"
    assert ended(run, 20).state == "cancelled"
    assert Operation.objects.get(run=run).error_class == "cancelled"
    assert told(run)[-2:] == ["model.failed", "run.cancelled"]


def test_during_a_retry_after(project):
    run = begin([{"error": {"code": "rate_limited", "message": "slow down", "retry_after": 3000}}], project=project)
    until_sync(lambda: Operation.objects.filter(run=run, state="failed").exists())
    cancel(run)
    assert ended(run, 20).state == "cancelled"


def test_during_a_read_it_is_failed_and_had_no_effect(project):
    make_tool(project, "slow", hangs, effect="read")
    run = begin([calls(call("slow", text="a")), says("never")], ["slow"], project=project)
    waits(run, "dispatched")
    cancel(run)
    assert ended(run, 20).failure_message == "cancelled"
    assert states(run) == [("slow", "failed")]


def test_during_a_write_it_is_uncertain_and_the_run_says_so(project, ledger):
    async def pay(dispatch, text):
        ledger.write(dispatch.idempotency_key, text)
        return await hangs(dispatch, text)

    make_tool(project, "pay", pay, idempotent_for_seconds=3600)
    run = begin([calls(call("pay", text="a")), says("never")], ["pay"], project=project)
    until_sync(lambda: len(ledger.lines()) == 1)
    cancel(run, "wrong customer")
    assert ended(run, 20).failure_message == "cancelled, 1 operation uncertain"
    assert states(run) == [("pay", "uncertain")]
    end = Event.objects.get(run_id=run.id, type="run.cancelled").envelope
    assert '"operations":{"uncertain":1}' in end
    assert '"reason":"wrong customer","requested_by":"ann"' in end
    assert len(ledger.lines()) == 1


def test_while_an_approval_waits_the_request_is_withdrawn_at_once(project, ledger):
    make_tool(project, "pay", writes_to(ledger))
    run = begin([calls(call("pay", text="a")), says("never")], ["pay"], project=project)
    (gated,) = waits(run, "awaiting_approval")
    cancel(run)
    assert Approval.objects.get(operation_id=gated.id).state == "withdrawn"
    with pytest.raises(Conflict):
        decide(gated, "approve")
    assert ended(run, 20).state == "cancelled"
    assert (states(run), ledger.lines()) == ([("pay", "withdrawn")], [])


def test_after_a_yes_that_was_not_carried_out_yet(project, ledger):
    """The request is decided, the call has not left: the cancel still stops it."""
    make_tool(project, "pay", writes_to(ledger))
    run = begin([calls(call("pay", text="a")), says("never")], ["pay"], project=project)
    (gated,) = waits(run, "awaiting_approval")
    Approval.objects.filter(operation_id=gated.id).update(state="granted", decided_at=gated.proposed_at)
    cancel(run)
    assert states(run) == [("pay", "withdrawn")]
    assert ended(run, 20).state == "cancelled"
    assert ledger.lines() == []


def test_while_an_uncertain_call_waits(project):
    make_tool(project, "pay", unclear, effect="write")
    allow(project)
    run = begin([calls(call("pay", text="a")), says("never")], ["pay"], project=project)
    waits(run, "uncertain")
    cancel(run)
    assert ended(run, 20).failure_message == "cancelled, 1 operation uncertain"


def unclear(dispatch, text):
    raise ConnectionResetError


def allow(project):
    from tests.kernel import rule

    rule(project, "pay", "allow")


def test_twice_gives_the_same_answer_and_one_end(project):
    run = begin([says("late") | {"delay_seconds": 60}], project=project)
    first = cancel(run, "first")
    assert cancel(run, "second").cancel_requested_at == first.cancel_requested_at
    assert ended(run, 20).cancel_reason == "first"
    assert told(run).count("run.cancelled") == 1


def test_a_run_that_has_ended_or_is_anothers_cannot_be_cancelled(project):
    run = ended(begin([says("done")], project=project))
    with pytest.raises(Conflict):
        cancel(run)
    with pytest.raises(NotFound):
        endings.request_cancel(run.id, make_project().slug, by=ANN)


def test_a_cancel_whose_message_to_temporal_was_lost_is_told_again(project, monkeypatch):
    run = begin([says("late") | {"delay_seconds": 60}], project=project)
    until_sync(lambda: Operation.objects.filter(run=run, state="dispatched").exists())
    with monkeypatch.context() as lost:
        lost.setattr(temporal, "wake", lambda *_, **__: None)
        cancel(run)
    from runs.loop import wakes

    until_sync(lambda: wakes.wake_overdue() == 1, 5)
    assert ended(run, 20).state == "cancelled"
    assert not News.objects.exists()


def test_a_cancel_seen_by_a_look_alone_stops_the_calls_that_still_run(project, monkeypatch):
    """Temporal's own cancel is lost, a plain wake arrives: the look finds the request, and nothing is left running."""
    make_tool(project, "slow", hangs, effect="read")
    make_tool(project, "pay", lambda dispatch, text: "paid")
    script = [calls(call("slow", text="a"), call("pay", text="b")), says("never")]
    run = begin(script, ["slow", "pay"], project=project)
    waits(run, "dispatched", "awaiting_approval")
    with monkeypatch.context() as lost:
        lost.setattr(temporal, "wake", lambda *_, **__: None)
        cancel(run)
    temporal.wake(run.id)
    assert ended(run, 20).state == "cancelled"
    assert states(run) == [("slow", "failed"), ("pay", "withdrawn")]


def test_against_completion_exactly_one_end_is_written(project):
    runs = [begin([says("done")], project=project) for _ in range(8)]
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(_cancel_if_it_lives, runs))
    for run in runs:
        run = ended(run, 30)
        assert sum(name in ("run.completed", "run.cancelled") for name in told(run)) == 1
        assert (run.state == "cancelled") == (run.cancel_requested_at is not None)


def _cancel_if_it_lives(run):
    try:
        cancel(run)
    except Conflict:
        pass
    finally:
        connection.close()


def test_a_cancel_while_the_end_is_being_written_does_not_lose_the_end(project, monkeypatch):
    """Temporal's cancel arrives when the run's last activity is under way: the row must still be ended."""
    entered, go_on = threading.Event(), threading.Event()
    finish = endings.finish

    def held(asked):
        entered.set()
        go_on.wait(20)
        return finish(asked)

    monkeypatch.setattr(endings, "finish", held)
    run = begin([says("done")], project=project)
    assert entered.wait(30)
    cancel(run)
    until_sync(lambda: _cancel_was_heard(run))
    go_on.set()
    assert ended(run, 20).state == "cancelled"
    until_sync(lambda: temporal.standing(run.id) == "ended")


def _cancel_was_heard(run) -> bool:
    async def look() -> bool:
        handle = (await temporal._loop.client()).get_workflow_handle(f"run-{run.id}")
        history = await handle.fetch_history()
        return any(event.HasField("workflow_execution_cancel_requested_event_attributes") for event in history.events)

    return temporal._loop.run(look(), 10)


def test_no_effect_starts_after_the_request_is_committed(project, ledger):
    """Calls of one turn race with the cancel: whatever is in the ledger was dispatched before the request."""
    make_tool(project, "pay", writes_to(ledger), idempotent_for_seconds=3600)
    many = calls(*[call("pay", text=str(number)) for number in range(16)])
    run = begin([many, says("never")], ["pay"], project=project)
    until_sync(lambda: bool(ledger.lines()))
    requested = cancel(run).cancel_requested_at
    ended(run, 30)
    for operation in tool_calls(run):
        assert operation.state in ("succeeded", "uncertain", "failed", "withdrawn")
        if operation.state != "withdrawn":
            assert operation.dispatched_at <= requested
    settled = {str(operation.id) for operation in tool_calls(run) if operation.state != "withdrawn"}
    assert {line.split()[0] for line in ledger.lines()} <= settled


def test_a_dispatch_that_is_already_on_its_way_makes_the_cancel_wait_and_none_follows(project, ledger):
    make_tool(project, "pay", writes_to(ledger))
    run = begin([calls(call("pay", text="a")), says("never")], ["pay"], project=project)
    (gated,) = waits(run, "awaiting_approval")
    cancel(run)
    step = operations.dispatch(gated.id, lambda *_: None)
    assert isinstance(step, operations.Settled)
    assert read(run).state in ("cancelling", "cancelled")
    ended(run, 20)

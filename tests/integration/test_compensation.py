"""Undoing an effect: an operation of its own, with its own policy, approval and fate. What was done stays as it was."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import pytest
from django.db import connection

from approvals.models import Approval
from kernel_project import verify
from kernel_project.primitives.errors import Conflict, Invalid, NotFound, Unavailable
from outbox.contracts import Actor
from outbox.models import Event
from runs.boundary import compensation, journal, reconcile
from runs.boundary.compensation import Compensated
from runs.boundary.contracts import NotSent
from runs.loop import compensations, endings, starts, temporal
from runs.models import Operation, Run, Tool
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
    says,
    told,
    tool_calls,
)
from tests.waiting import until_sync

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("carrier")]

OLGA = Actor(id="olga", type="human")
UNPAY = {"tool": "unpay", "arguments": {"text": "payment {result:payment} of {argument:text}, made as {operation_id}"}}


@pytest.fixture
def ledger(tmp_path):
    return Ledger(tmp_path / "ledger")


@pytest.fixture
def project():
    return make_project()


class Shop:
    """A tool that pays, and one that undoes it; `undo` is what the second one does."""

    def __init__(self, project: Any, ledger: Ledger, undo: Any = None, **declared: Any) -> None:
        self.project, self.ledger = project, ledger

        def pay(dispatch, text):
            ledger.write(dispatch.idempotency_key, f"pay {text}")
            return {"payment": 17}

        def unpay(dispatch, text):
            ledger.write(dispatch.idempotency_key, f"unpay {text}")
            return undo(dispatch) if undo else "undone"

        make_tool(project, "pay", pay, compensation=UNPAY)
        make_tool(project, "unpay", unpay, **declared)
        rule(project, "pay", "allow")

    def paid(self) -> Operation:
        run = begin([calls(call("pay", text="order 7")), says("paid")], ["pay"], project=self.project)
        assert ended(run).state == "completed"
        [operation] = tool_calls(run)
        return operation

    def undo(self, operation: Operation, note: str = "wrong customer") -> Run:
        return compensations.compensate(operation.id, project=self.project.slug, by=OLGA, note=note)


def call_of(run: Run, state: str) -> Operation:
    """The one call of a compensation, once it stands in this state."""

    def stands() -> bool:
        found = compensation.call_of(run)
        return found is not None and found.state == state

    until_sync(stands, 30, lambda: compensation.call_of(run))
    found = compensation.call_of(run)
    assert found is not None
    return found


def facts(operation: Operation) -> dict[str, Any]:
    return Operation.objects.filter(id=operation.id).values().get()


def test_the_declared_tool_is_called_once_with_what_was_called_and_answered(project, ledger):
    shop = Shop(project, ledger)
    rule(project, "unpay", "allow")
    paid = shop.paid()
    before = facts(paid)
    run = ended(shop.undo(paid))
    assert (run.state, run.started_by, run.compensates_id) == ("completed", "olga", paid.id)
    undone = compensation.call_of(run)
    assert (undone.state, undone.compensates_id, undone.actor) == ("succeeded", paid.id, "kernel/compensation")
    assert ledger.lines() == [
        f"{paid.id} pay order 7",
        f"{undone.id} unpay payment 17 of order 7, made as {paid.id}",
    ]
    assert facts(paid) == before
    assert [check.id for check in verify.run() if not check.ok] == []


def test_its_events_name_what_it_undoes_and_what_caused_it(project, ledger):
    shop = Shop(project, ledger)
    rule(project, "unpay", "allow")
    paid = shop.paid()
    run = ended(shop.undo(paid))
    assert told(run) == ["run.started", "turn.started", "tool.started", "tool.completed", "run.completed"]
    events = [json.loads(text)["data"] for text in
              Event.objects.filter(run_id=run.id).order_by("sequence").values_list("envelope", flat=True)]  # fmt: skip
    assert (events[0]["compensates"], events[0]["requested_by"]) == (str(paid.id), "olga")
    assert events[0]["compensates_event"] == str(journal.started_id(paid))
    assert events[2]["compensates"] == str(paid.id)


def test_it_works_where_the_effect_was_made(project, ledger):
    places: list[str] = []
    shop = Shop(project, ledger, undo=lambda dispatch: places.append(dispatch.workspace) or "undone")
    rule(project, "unpay", "allow")
    paid = shop.paid()
    ended(shop.undo(paid))
    assert places[0].endswith(f"/{project.slug}/{paid.run_id}")


def test_policy_asks_a_person_who_sees_the_exact_call(project, ledger):
    shop = Shop(project, ledger)
    paid = shop.paid()
    run = shop.undo(paid)
    waiting = call_of(run, "awaiting_approval")
    asked = Approval.objects.get(operation_id=waiting.id)
    assert (asked.agent, asked.tool, asked.requested_by) == ("kernel/compensation", "unpay", "olga")
    assert f"made as {paid.id}" in asked.binding
    assert len(ledger.lines()) == 1
    decide(waiting, "approve")
    assert ended(run).state == "completed"
    assert len(ledger.lines()) == 2


def test_a_no_ends_it_visibly_and_another_may_be_tried(project, ledger):
    shop = Shop(project, ledger)
    paid = shop.paid()
    run = shop.undo(paid)
    decide(call_of(run, "awaiting_approval"), "reject", "ask billing first")
    run = ended(run)
    assert (run.state, run.failure_code) == ("failed", "compensation_rejected")
    assert "still stands" in run.failure_message
    again = shop.undo(paid)
    decide(call_of(again, "awaiting_approval"), "approve")
    assert ended(again).state == "completed"
    assert (Run.objects.filter(compensates_id=paid.id).count(), len(ledger.lines())) == (2, 2)


def test_a_rule_for_compensations_alone_may_deny_them(project, ledger):
    from approvals import policy
    from approvals.contracts import Rule

    shop = Shop(project, ledger)
    rule(project, "unpay", "allow")
    policy.save(
        project.slug, Rule(name="no undoing", answer="deny", agent="kernel/compensation", tool="unpay"), by="test"
    )
    run = ended(shop.undo(shop.paid()))
    assert (run.failure_code, len(ledger.lines())) == ("compensation_denied", 1)


def test_one_that_fails_stays_failed_and_another_may_be_tried(project, ledger):
    outcomes = [NotSent("no route"), None]

    def undo(_):
        if (error := outcomes.pop(0)) is not None:
            raise error
        return "undone"

    shop = Shop(project, ledger, undo)
    rule(project, "unpay", "allow")
    paid = shop.paid()
    failed = ended(shop.undo(paid))
    assert (failed.state, failed.failure_code) == ("failed", "compensation_failed")
    assert ended(shop.undo(paid)).state == "completed"
    assert compensation.call_of(failed).state == "failed"
    with pytest.raises(Compensated):
        shop.undo(paid)


def test_one_whose_effect_is_unclear_waits_for_a_verdict_and_forbids_another(project, ledger):
    def undo(_):
        raise ConnectionResetError

    shop = Shop(project, ledger, undo)
    rule(project, "unpay", "allow")
    paid = shop.paid()
    run = shop.undo(paid)
    unclear = call_of(run, "uncertain")
    with pytest.raises(Compensated) as error:
        shop.undo(paid)
    assert error.value.details["run"] == str(run.id)
    reconcile.resolve(unclear.id, project=project.slug, verdict="occurred", by=OLGA, note="it is in the books")
    assert ended(run).state == "completed"
    with pytest.raises(Compensated):
        shop.undo(paid)
    assert len(ledger.lines()) == 2


def test_two_people_at_once_undo_it_once(project, ledger):
    shop = Shop(project, ledger)
    rule(project, "unpay", "allow")
    paid = shop.paid()

    def one(_: int) -> Any:
        try:
            return shop.undo(paid)
        except Conflict as error:
            return error
        finally:
            connection.close()

    with ThreadPoolExecutor(6) as pool:
        got = list(pool.map(one, range(6)))
    [run] = {answer.id for answer in got if isinstance(answer, Run)}
    assert all(isinstance(answer, Run | Compensated) for answer in got)
    assert ended(Run.objects.get(id=run)).state == "completed"
    assert len(ledger.lines()) == 2


def test_a_cancelled_one_withdraws_its_request(project, ledger):
    shop = Shop(project, ledger)
    paid = shop.paid()
    run = shop.undo(paid)
    waiting = call_of(run, "awaiting_approval")
    endings.request_cancel(run.id, project.slug, by=OLGA)
    assert ended(run).state == "cancelled"
    assert compensation.call_of(run).state == "withdrawn"
    assert Approval.objects.get(operation_id=waiting.id).state == "withdrawn"
    assert shop.undo(paid).compensates_id == paid.id


def test_without_temporal_there_is_no_run_and_no_event(project, ledger, monkeypatch):
    shop = Shop(project, ledger)
    paid = shop.paid()

    def down(_):
        raise temporal.Down("Temporal cannot be reached")

    with monkeypatch.context() as away:
        away.setattr(temporal, "start", down)
        with pytest.raises(Unavailable):
            shop.undo(paid)
    assert not Run.objects.filter(compensates_id=paid.id).exists()
    assert starts.settle_unclear_starts() == 0
    assert call_of(shop.undo(paid), "awaiting_approval")


def test_what_has_no_known_effect_cannot_be_undone(project, ledger):
    shop = Shop(project, ledger)
    paid = shop.paid()
    for change in (
        {"state": "uncertain", "error_class": "X"}, {"state": "failed", "error_class": "X"}, {"state": "tool_error"},
        {"state": "dispatched"}, {"effect": "read"},
        {"state": "reconciled", "verdict": "unknown", "reconciled_by": "o", "reconciled_at": paid.settled_at},
    ):  # fmt: skip
        row = Operation(**facts(paid) | change)
        assert compensation.not_undoable(row), change
    happened = {"state": "reconciled", "verdict": "occurred"}
    assert compensation.not_undoable(Operation(**facts(paid) | happened)) == ""


def test_what_cannot_be_undone_now_is_a_sentence_and_changes_nothing(project, ledger):
    shop = Shop(project, ledger)
    paid = shop.paid()
    tools = Tool.objects.filter(project=project)
    with pytest.raises(NotFound):
        compensations.compensate(paid.id, project=make_project().slug, by=OLGA, note="x")
    with pytest.raises(NotFound):
        compensations.compensate(UUID(int=0), project=project.slug, by=OLGA, note="x")
    for note in (" ", "x" * 2_001, "\x00", "\ud800"):
        with pytest.raises(Invalid):
            shop.undo(paid, note)
    tools.filter(name="unpay").update(enabled=False)
    with pytest.raises(Conflict, match="not there or off"):
        shop.undo(paid)
    tools.filter(name="unpay").update(enabled=True, input_schema={"type": "object", "required": ["amount"]})
    with pytest.raises(Invalid, match="does not fit unpay"):
        shop.undo(paid)
    tools.filter(name="pay").update(compensation={"tool": "unpay", "arguments": {"text": "{result:iban}"}})
    with pytest.raises(Invalid, match="result has no 'iban'"):
        shop.undo(paid)
    tools.filter(name="pay").update(compensation={"tool": ""})
    with pytest.raises(Conflict, match="cannot be read"):
        shop.undo(paid)
    tools.filter(name="pay").update(compensation=None)
    with pytest.raises(Conflict, match="declares no way"):
        shop.undo(paid)
    assert not Run.objects.filter(compensates_id__isnull=False).exists()

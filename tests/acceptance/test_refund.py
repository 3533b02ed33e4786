"""A refund is paid once, whatever dies: the ledger is another process, workers are killed, models ask again, operators
start again. Counted by the ledger's own lines.
"""

from __future__ import annotations

import pytest

from runs.loop import waiting
from tests.acceptance.refund_desk import MODES, Desk
from tests.kernel import ended
from tests.waiting import until_sync

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("temporal_server"),
    pytest.mark.timeout(600),
]


@pytest.fixture
def desk(tmp_path):
    with Desk(tmp_path) as desk:
        yield desk


def is_paid_once(desk: Desk, run, order: str) -> None:
    """It was settled by itself; the model that asked again was refused, and so is the operator who starts it again."""
    first, second = desk.told(run)
    assert first in (f"booked {order}", "found by the probe")
    assert "Not executed" in second
    assert desk.first(run).state == "succeeded"
    assert desk.api.get(f"/operations/{desk.first(run).id}").data["state"] == "succeeded"
    started_again = desk.told(desk.again(run))
    assert all("Not executed" in told for told in started_again)
    assert desk.lines(order) == 1


def is_uncertain_and_says_so(desk: Desk, run, order: str) -> None:
    """To the model, to the API and in the admin; and nothing pays again."""
    first, second = desk.told(run)
    assert "UNKNOWN" in first
    assert "Not executed" in second
    operation = desk.first(run)
    assert (operation.state, operation.attempt) == ("uncertain", 1)
    assert str(operation.id) in desk.queue()
    assert desk.api.get(f"/operations/{operation.id}").data["needs_attention"]
    assert "uncertain" in desk.page(operation)
    assert all("Not executed" in told for told in desk.told(desk.again(run)))
    assert desk.lines(order) == 1


def found_out(desk: Desk, refunds) -> None:
    """The other side can be asked, or knows the key: paid once. Otherwise: uncertain, and paid once."""
    for mode in ("keyed", "probed"):
        is_paid_once(desk, *refunds[mode])
    is_uncertain_and_says_so(desk, *refunds["opaque"])


def test_a_killed_before_the_post_it_is_paid_by_itself_in_every_mode(desk):
    refunds = desk.killed_refunds("after_intent:{}#1=kill".format)
    for mode in MODES:
        is_paid_once(desk, *refunds[mode])
        assert desk.first(refunds[mode][0]).attempt == 2


def test_b_the_ledger_committed_and_the_worker_died_without_its_reply(desk):
    found_out(desk, desk.killed_refunds(lambda _: "", "kill"))


def test_b_the_ledger_committed_and_hung_up(desk):
    desk.workers.fresh()
    found_out(desk, refunds_with(desk, "close"))


def test_c_the_reply_came_and_the_worker_died_before_it_was_recorded(desk):
    found_out(desk, desk.killed_refunds("after_effect:{}#1=kill".format))


def test_d_the_reply_comes_after_the_client_gave_up(desk):
    desk.workers.fresh()
    found_out(desk, refunds_with(desk, "slow"))


def refunds_with(desk: Desk, fault: str):
    """A refund in each mode, whose first booking ends as the fault says."""
    refunds = {}
    for mode in MODES:
        order = desk.order()
        desk.ledger.breaks(order, fault)
        refunds[mode] = desk.refund(f"refund-{mode}", order), order
    return refunds


def test_the_model_that_asks_again_is_refused_by_the_guard_alone(desk):
    """A tool that names no `unique_by`: while the first payment is unclear, the same call does not leave."""
    desk.tool("opaque", {}, name="refund-plain")
    desk.workers.fresh()
    order = desk.order()
    desk.ledger.breaks(order, "close")
    run = desk.refund("refund-plain", order)
    first, second = desk.told(run)
    assert "UNKNOWN" in first
    assert "still unclear" in second
    assert "still unclear" in desk.told(desk.again(run))[0]
    assert desk.lines(order) == 1


@pytest.mark.parametrize("verdict", ["occurred", "unknown"])
def test_the_operator_who_lets_a_waiting_run_go_on_does_not_pay_again(desk, verdict):
    """The run pauses at the unclear payment; a person's verdict in the API is what resumes it."""
    desk.workers.fresh()
    order = desk.order()
    desk.ledger.breaks(order, "close")
    run = desk.refund("refund-opaque", order, on_uncertain="wait")
    operation = desk.until(run, "uncertain")
    until_sync(lambda: waiting.explain() and "uncertain" in desk.api.get(f"/runs/{run.id}").data["waiting_for"])
    answer = desk.api.post(f"/operations/{operation.id}/reconcile", {"verdict": verdict, "note": "on the statement"})
    assert answer.status_code == 200, answer.data
    assert "Not executed" in desk.told(run)[1]
    assert all("Not executed" in told for told in desk.told(desk.again(run)))
    assert desk.lines(order) == 1


def test_the_operator_who_starts_a_run_again_that_failed_of_it_does_not_pay_again(desk):
    desk.workers.fresh()
    order = desk.order()
    desk.ledger.breaks(order, "close")
    run = desk.refund("refund-opaque", order, on_uncertain="fail")
    assert (ended(run).state, ended(run).failure_code) == ("failed", "uncertain_operation")
    assert all("Not executed" in told for told in desk.told(desk.again(run)))
    assert desk.lines(order) == 1
    assert str(desk.first(run).id) in desk.queue()

"""F11. A run waits for a person until the decision or the deadline, and goes on as policy declares."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db.models import F
from django.db.models.functions import Now

from approvals import services as approvals
from approvals.contracts import Decider
from approvals.models import Approval
from runs.loop import wakes
from runs.models import News, Run
from tests.kernel import (
    Carrier,
    Ledger,
    begin,
    call,
    calls,
    decide,
    ended,
    make_project,
    make_tool,
    read,
    rule,
    said,
    says,
    states,
    told,
    waits,
    writes_to,
)  # fmt: skip
from tests.waiting import until_sync

pytestmark = pytest.mark.django_db(transaction=True)

SCRIPT = [calls(call("pay", text="a")), says("{result:last}")]


@pytest.fixture
def ledger(tmp_path):
    return Ledger(tmp_path / "ledger")


@pytest.fixture
def project(ledger):
    project = make_project()
    make_tool(project, "pay", writes_to(ledger))
    return project


def waiting_run(project, **declared):
    if declared:
        rule(project, "pay", **declared)
    run = begin(SCRIPT, ["pay"], project=project)
    return run, waits(run, "awaiting_approval")[0]


def person(name):
    return Decider(name=name, groups=frozenset(), via="api")


def expires_now(run):
    """Move the deadline, not the clock."""
    Approval.objects.filter(run_id=run.id).update(deadline_at=Now())


@pytest.mark.usefixtures("carrier")
class TestWithAWorker:
    def test_granted_the_call_runs_once_and_the_run_goes_on(self, project, ledger):
        run, gated = waiting_run(project)
        decide(gated, "approve", by="ann")
        assert (ended(run).state, said(run)) == ("completed", "wrote a")
        assert len(ledger.lines()) == 1
        asked, granted = told(run).index("approval.requested"), told(run).index("approval.granted")
        assert asked < granted < told(run).index("tool.started")

    def test_rejected_the_model_hears_the_persons_words_and_nothing_is_done(self, project, ledger):
        run, gated = waiting_run(project)
        decide(gated, "reject", "wrong customer, ask billing first")
        assert ended(run).state == "completed"
        assert "wrong customer, ask billing first" in said(run)
        assert ledger.lines() == []

    def test_the_workflows_timer_ends_a_request_in_time_while_beat_is_dead(self, project, ledger):
        run, gated = waiting_run(project, deadline_seconds=1)
        assert ended(run, 20).state == "completed"
        assert states(run) == [("pay", "expired")]
        assert "nobody decided" in said(run)
        assert told(run).count("approval.timed_out") == 1
        assert Approval.objects.get(operation_id=gated.id).state == "expired"

    def test_a_late_yes_changes_nothing(self, project, ledger):
        run, gated = waiting_run(project, deadline_seconds=1)
        ended(run, 20)
        with pytest.raises(approvals.Expired):
            decide(gated, "approve")
        assert ledger.lines() == []

    def test_a_policy_may_cancel_the_run_at_the_deadline(self, project, ledger):
        run, _ = waiting_run(project, deadline_seconds=1, on_expiry="cancel_run")
        run = ended(run, 20)
        assert (run.state, run.cancel_requested_by) == ("cancelled", "policy rule for pay v1")
        assert run.cancel_reason == "nobody decided before the deadline"
        assert states(run) == [("pay", "expired")]
        assert told(run)[-1] == "run.cancelled"

    def test_a_decision_whose_wake_was_lost_is_heard_within_the_sweep(self, project, ledger, monkeypatch):
        run, gated = waiting_run(project)
        with monkeypatch.context() as lost:
            lost.setattr("runs.loop.temporal.wake", lambda *_, **__: None)
            decide(gated, "approve")
        until_sync(lambda: wakes.wake_overdue() == 1, 4)
        assert ended(run).state == "completed"
        assert read(run).wake_since is None

    def test_the_workflows_timer_passes_a_request_on_and_ends_the_next_one(self, project, ledger):
        policy = {"deadline_seconds": 1, "on_expiry": "escalate", "group": "a", "escalate_to": "b"}
        run, gated = waiting_run(project, **policy)
        assert ended(run, 30).state == "completed"
        asked = Approval.objects.filter(operation_id=gated.id).order_by("requested_at")
        assert list(asked.values_list("state", "group")) == [("escalated", "a"), ("expired", "b")]
        assert told(run).count("approval.timed_out") == 2
        assert ledger.lines() == []

    def test_the_model_is_told_what_a_person_made_of_its_call(self, project, ledger):
        run, gated = waiting_run(project)
        asked = Approval.objects.get(operation_id=gated.id)
        made = approvals.edit(asked.id, project.slug, person("ed"), {"text": "b"})
        approvals.decide(made.id, project.slug, person("ann"), "approve")
        assert ended(run).state == "completed"
        assert [line.split()[1] for line in ledger.lines()] == ["b"]
        assert (
            'A person replaced the arguments of this call before anything was done. They are now: {"text":"b"}'
            in said(run)
        )
        assert "wrote b" in said(run)

    def test_wakes_without_news_during_a_call_do_no_harm(self, project, ledger):
        """A workflow that was woken while it performs must not spin."""
        from runs.loop import temporal

        make_tool(project, "slow", lambda dispatch, text: __import__("time").sleep(2) or "slept", effect="read")
        run = begin([calls(call("slow", text="a")), says("done")], ["slow"], project=project)
        waits(run, "dispatched")
        for _ in range(5):
            temporal.wake(run.id)
        assert ended(run, 20).state == "completed"


@pytest.mark.usefixtures("temporal_server")
class TestWithoutAWorker:
    def test_beat_ends_a_request_in_time_while_the_worker_is_dead(self, project, ledger):
        with Carrier():
            run, gated = waiting_run(project, deadline_seconds=600)
        expires_now(run)
        assert approvals.expire_due() == 1
        assert states(run) == [("pay", "expired")]
        with pytest.raises(approvals.Expired):
            decide(gated, "approve")
        with Carrier():
            assert ended(run).state == "completed"
        assert told(run).count("approval.timed_out") == 1
        assert ledger.lines() == []

    def test_beat_cancels_the_run_where_policy_says_so_while_the_worker_is_dead(self, project):
        with Carrier():
            run, _ = waiting_run(project, deadline_seconds=600, on_expiry="cancel_run")
        expires_now(run)
        assert approvals.expire_due() == 1
        assert read(run).state == "cancelling"
        with Carrier():
            assert ended(run).state == "cancelled"

    def test_a_yes_in_time_stays_valid_although_the_worker_comes_late(self, project, ledger):
        with Carrier():
            run, gated = waiting_run(project, deadline_seconds=60)
        decide(gated, "approve")
        Approval.objects.filter(operation_id=gated.id).update(deadline_at=F("deadline_at") - timedelta(hours=1))
        assert approvals.expire_due() == 0
        with Carrier():
            assert ended(run).state == "completed"
        assert len(ledger.lines()) == 1

    def test_a_yes_given_while_temporal_is_away_is_heard_soon_after_it_is_back(self, project, ledger, temporal_server):
        """However long it was away: what Temporal did not take is told again in a moment, not ever more rarely."""
        with Carrier():
            run, gated = waiting_run(project)
        with temporal_server.stopped():
            decide(gated, "approve")
            News.objects.filter(run_id=run.id).update(tell_at=Now(), tells=9)
            assert wakes.wake_overdue() == 0
            assert News.objects.get(run_id=run.id).tells == 0
        until_sync(lambda: wakes.wake_overdue() == 1, 5)
        with Carrier():
            assert ended(run).state == "completed"
        assert len(ledger.lines()) == 1

    def test_if_whoever_ended_the_request_died_before_the_cancel_the_look_cancels(self, project, monkeypatch):
        with Carrier():
            run, _ = waiting_run(project, deadline_seconds=600, on_expiry="cancel_run")
        with monkeypatch.context() as died:
            died.setattr("runs.loop.sweeps.cancel_expired", lambda *_: None)
            expires_now(run)
            assert approvals.expire_due() == 1
        assert Run.objects.get(id=run.id).cancel_requested_at is None
        with Carrier():
            assert ended(run).state == "cancelled"

"""C59, variant: Temporal hears nothing of a call that is still under way, and delivers it again. The row decides."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest

from runs.loop import activities, workflows
from runs.models import Operation, Run
from tests.kernel import Ledger, begin, call, calls, ended, make_project, make_tool, rule, says
from tests.waiting import until_sync

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("carrier"), pytest.mark.timeout(90)]


@pytest.fixture
def deaf(monkeypatch):
    """No heartbeat is sent, and Temporal waits for the first one for a second only."""
    monkeypatch.setattr(activities, "BEAT_SECONDS", 3600.0)
    monkeypatch.setattr(workflows, "HEARTBEAT_TIMEOUT", timedelta(seconds=1))


def test_a_redelivered_write_is_uncertain_and_its_own_late_answer_settles_it(deaf, tmp_path):
    gate, ledger, project = threading.Event(), Ledger(tmp_path / "ledger"), make_project()

    def pays(dispatch, text):
        ledger.write(dispatch.idempotency_key, text)
        assert gate.wait(60)
        return f"paid {text}"

    make_tool(project, "pay", pays)
    rule(project, "pay", "allow")
    run = begin([calls(call("pay", text="a")), says("{result:last}")], ["pay"], project=project)
    paid = Operation.objects.filter(run_id=run.id, name="pay")
    until_sync(lambda: paid.filter(state="uncertain").exists(), 30, lambda: list(paid.values("state", "attempt")))
    assert (len(ledger.lines()), paid.get().attempt, paid.get().error_class) == (1, 1, "interrupted")
    gate.set()
    assert ended(run).state == Run.State.COMPLETED
    row = paid.get()
    assert (row.state, row.verdict, row.attempt, len(ledger.lines())) == ("reconciled", "occurred", 1, 1)

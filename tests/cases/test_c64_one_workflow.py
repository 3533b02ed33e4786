"""C64. A run has exactly one workflow, however often its start is sent. (Temporal down and unclear: F5.)"""

from __future__ import annotations

import pytest

from runs.loop import starts, temporal
from runs.models import Run
from tests.kernel import Carrier, begin_again, ended, make_agent, make_project, read, says, told

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("temporal_server")]


@pytest.fixture
def version():
    return make_agent(make_project(), [says("done")])


def test_a_start_that_is_sent_twice_is_one_workflow_and_a_success(version):
    run = begin_again(version)
    temporal.start(starts.run_input(run))
    assert read(run).state == "running"
    with Carrier():
        assert ended(run).state == "completed"
    temporal.start(starts.run_input(run))  # long after: the run that ended stays as it is
    assert temporal.standing(run.id) == "ended"
    assert told(run).count("model.started") == 1


def test_a_process_that_died_between_its_row_and_its_request_leaves_no_run(version, monkeypatch):
    def dies(_):
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr(temporal, "start", dies)
        with pytest.raises(SystemExit):
            begin_again(version, key="k")
    monkeypatch.setattr(starts, "UNCLEAR_AFTER_SECONDS", 0)
    assert starts.settle_unclear_starts() == 1
    assert not Run.objects.exists()
    assert begin_again(version, key="k").state == "running"

"""F5. Without Temporal's acknowledgement there is no run: no row, no event, and the same key may be tried again."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from django.db import connection
from django.db.models import F

from outbox.contracts import Actor
from outbox.models import Event
from runs.loop import endings, starts, temporal
from runs.models import Artifact, IdempotencyKey, Run
from tests.kernel import Carrier, begin, begin_again, ended, make_agent, make_project, read, says, told
from tests.waiting import until_sync

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("temporal_server")]


@pytest.fixture
def version():
    return make_agent(make_project(), [says("done")])


@pytest.fixture
def acknowledgement_lost(monkeypatch):
    """A start that reaches Temporal and is never acknowledged; the row is returned."""

    def lose(version) -> Run:
        real = temporal._start

        async def lost(given):
            await real(given)
            raise temporal.Unclear("the acknowledgement was lost")

        with monkeypatch.context() as patch:
            patch.setattr(temporal, "_start", lost)
            with pytest.raises(temporal.Unclear):
                begin_again(version, key="k")
        return Run.objects.get()

    return lose


def age(run_id, seconds=60):
    """As if the start had been longer ago."""
    Run.objects.filter(id=run_id).update(created_at=F("created_at") - timedelta(seconds=seconds))


def test_down_a_start_is_refused_and_leaves_no_run_and_no_event(version, temporal_server):
    with temporal_server.stopped(), pytest.raises(temporal.Unavailable):
        begin_again(version, key="k")
    starts.settle_unclear_starts()
    assert not Event.objects.exists()
    run = Run.objects.first()
    if run is not None:  # nobody could tell: the sweep does, when Temporal is back
        age(run.id)
        assert starts.settle_unclear_starts() == 1
    assert (Run.objects.count(), Artifact.objects.count(), Event.objects.count()) == (0, 0, 0)


def test_back_up_the_same_key_starts_the_run(version, temporal_server):
    with temporal_server.stopped(), pytest.raises(temporal.Unavailable):
        begin_again(version, key="k")
    for run in Run.objects.all():
        age(run.id)
    with Carrier():
        run = begin_again(version, key="k")
        assert ended(run).state == "completed"
    assert begin_again(version, key="k").id == run.id
    assert Run.objects.count() == 1


def test_a_run_that_waits_goes_on_when_temporal_is_back(temporal_server):
    """Temporal goes away under a run that is under way, and comes back."""
    with Carrier():
        run = begin([says("done") | {"delay_seconds": 2}], project=make_project())
        until_sync(lambda: read(run).turn == 1)
        with temporal_server.stopped():
            pass
        assert ended(run, 60).state == "completed"
    assert told(run).count("run.completed") == 1


def test_an_unclear_start_is_no_run_until_the_sweep_has_asked(version, acknowledgement_lost):
    run = acknowledgement_lost(version)
    assert (run.state, Event.objects.count()) == ("starting", 0)
    with pytest.raises(starts.KeyInProgress):
        begin_again(version, key="k")
    age(run.id)
    assert starts.settle_unclear_starts() == 1
    assert (read(run).state, told(run)) == ("running", ["run.started"])
    with Carrier():
        assert ended(run).state == "completed"


def test_an_unclear_start_that_never_arrived_is_forgotten(version, monkeypatch):
    async def lost(given):
        raise temporal.Unclear("the request was lost")

    with monkeypatch.context() as patch:
        patch.setattr(temporal, "_start", lost)
        with pytest.raises(temporal.Unclear):
            begin_again(version, key="k")
    age(Run.objects.get().id)
    assert starts.settle_unclear_starts() == 1
    assert not Run.objects.exists()


def test_a_start_that_hung_until_it_was_forgotten_is_refused_and_its_workflow_does_nothing(version, monkeypatch):
    """The process stood still between its row and its request; meanwhile the sweep found no workflow."""
    real = temporal._start

    async def late(given):
        from asgiref.sync import sync_to_async

        await sync_to_async(starts.forget)(given.plan.run_id)
        await real(given)
        monkeypatch.setattr(late, "run_id", given.plan.run_id, raising=False)

    monkeypatch.setattr(temporal, "_start", late)
    with pytest.raises(temporal.Unclear):
        begin_again(version, key="k")
    with Carrier():
        until_sync(lambda: temporal.standing(late.run_id) == "ended")
    assert (Run.objects.count(), Event.objects.count()) == (0, 0)


def test_fifty_starts_with_one_key_are_one_run(version):
    ids = at_once(version, 50)
    assert len(ids) == 1
    assert (Run.objects.count(), IdempotencyKey.objects.count()) == (1, 1)


def test_fifty_starts_with_a_key_whose_first_start_was_refused_are_one_run(version):
    run = begin_again(version, key="k")
    Run.objects.filter(id=run.id).update(state="starting", started_at=None)
    starts.forget(run.id)
    assert len(at_once(version, 50)) == 1
    assert Run.objects.count() == 1


def at_once(version, number) -> set:
    def one(_):
        try:
            return begin_again(version, key="k").id
        except starts.KeyInProgress:
            return None
        finally:
            connection.close()

    with ThreadPoolExecutor(10) as threads:
        return set(threads.map(one, range(number))) - {None}


def test_another_body_under_the_same_key_is_refused(version):
    begin_again(version, "one", key="k")
    with pytest.raises(starts.KeyReused):
        begin_again(version, "two", key="k")
    assert Run.objects.count() == 1


def test_a_run_cancelled_before_its_start_was_confirmed_never_works(version, acknowledgement_lost):
    """C64. The workflow is there, nobody confirmed it, and the run was cancelled meanwhile."""
    run = acknowledgement_lost(version)
    endings.request_cancel(run.id, run.project_id, by=Actor("ann", "human"))
    age(run.id)
    starts.settle_unclear_starts()
    assert read(run).state == "cancelling"
    with Carrier():
        assert ended(run).state == "cancelled"
    assert "model.started" not in told(run)

"""F4. The worker process is killed, or told to stop, in the middle: another one goes on, and no effect is repeated."""

from __future__ import annotations

import signal
import time
from datetime import timedelta

import pytest

from outbox.models import Event
from runs.models import Operation
from tests.kernel import (
    Carrier,
    WorkerProcess,
    begin,
    call,
    calls,
    ended,
    make_project,
    rule,
    said,
    says,
    states,
    told,
    waits,
)  # fmt: skip
from tests.waiting import until_sync

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("temporal_server"),
    pytest.mark.timeout(180),
]

ONE = [calls(call("tool", text="a")), says("{result:last}")]
UNCERTAIN_SECONDS_MAX = 30  # from the kill to the queue of uncertain operations


@pytest.fixture
def workers(tmp_path):
    with WorkerProcess(tmp_path) as processes:
        processes.hold.touch()
        yield processes


@pytest.fixture
def project():
    return make_project()


def test_killed_during_a_write_the_call_is_uncertain_and_never_repeated(project, workers):
    workers.tool(project, "tool", "worker-tools-write")
    rule(project, "tool", "allow")
    first = workers.start()
    run = begin(ONE, ["tool"], project=project)
    until_sync(lambda: len(workers.ledger.lines()) == 1, 60)
    first.kill()
    killed_at = time.monotonic()
    workers.start()
    waits(run, "uncertain", seconds=60)
    assert time.monotonic() - killed_at < UNCERTAIN_SECONDS_MAX
    assert len(workers.ledger.lines()) == 1
    assert told(run)[-1] == "tool.failed"


def test_killed_during_a_read_another_worker_reads_again_and_the_run_completes(project, workers):
    workers.tool(project, "tool", "worker-tools-read", effect="read")
    first = workers.start()
    run = begin(ONE, ["tool"], project=project)
    until_sync(lambda: len(workers.ledger.lines()) == 1, 60)
    first.kill()
    workers.hold.unlink()
    workers.start()
    assert (ended(run).state, said(run)) == ("completed", "wrote a")
    assert len(workers.ledger.lines()) == 2
    _every_event_once(run)


def test_killed_during_a_model_call_the_call_is_asked_again(project, workers):
    first = workers.start()
    run = begin([says("done") | {"delay_seconds": 3}], project=project)
    until_sync(lambda: Operation.objects.filter(run=run, state="dispatched").exists(), 60)
    first.kill()
    workers.start()
    assert ended(run).state == "completed"
    assert Operation.objects.get(run=run).attempt == 2
    _every_event_once(run)


def test_told_to_stop_it_finishes_what_it_began(project, workers):
    workers.tool(project, "tool", "worker-tools-write", idempotent_for_seconds=3600)
    first = workers.start()
    run = begin(ONE, ["tool"], project=project)
    until_sync(lambda: len(workers.ledger.lines()) == 1, 60)
    first.send_signal(signal.SIGTERM)
    workers.hold.unlink()
    assert first.wait(40) == 0
    assert states(run) == [("tool", "succeeded")]
    workers.start()
    assert ended(run).state == "completed"
    assert len(workers.ledger.lines()) == 1


def test_told_to_stop_during_a_long_model_call_another_worker_asks_again(project):
    """The drain is over before the answer: that is no failure of the model, and no cancel of the run."""
    with Carrier(graceful_shutdown_timeout=timedelta(milliseconds=200)):
        run = begin([says("done") | {"delay_seconds": 4}], project=project)
        until_sync(lambda: Operation.objects.filter(run=run, state="dispatched").exists(), 60)
    with Carrier():
        assert ended(run).state == "completed"
    assert Operation.objects.get(run=run).attempt == 2


def _every_event_once(run):
    events = list(Event.objects.filter(run_id=run.id).values_list("event_id", "sequence"))
    assert len({event_id for event_id, _ in events}) == len(events)
    assert sorted(sequence for _, sequence in events) == list(range(1, len(events) + 1))

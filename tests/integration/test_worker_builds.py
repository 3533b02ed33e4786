"""C62. Two builds of the worker at once: waiting runs survive a new version and its roll-back, and a stop drains.

Two real worker processes, started once for the module, because a build and its drain are those of a process.
"""

from __future__ import annotations

import signal
import uuid
from io import StringIO

import pytest
from django.core.management import call_command

from kernel_project.primitives.errors import KernelError
from outbox.models import Event
from runs.loop import builds
from tests.kernel import (
    WorkerProcess,
    begin,
    call,
    calls,
    decide,
    ended,
    make_project,
    read,
    rule,
    says,
    tool_calls,
    waits,
)
from tests.waiting import until_sync

pytestmark = pytest.mark.django_db(transaction=True)

QUEUE = f"builds-{uuid.uuid4().hex[:8]}"
EXIT_SECONDS_MAX = 40  # 20 of them for what is under way


@pytest.fixture(scope="module")
def processes(temporal_server, django_db_setup, django_db_blocker, tmp_path_factory):
    def of(build: str) -> WorkerProcess:
        named = {"TEMPORAL_TASK_QUEUE": QUEUE, "KERNEL_BUILD_ID": build, "KERNEL_WORKER_VERSIONING": "true"}
        return WorkerProcess(tmp_path_factory.mktemp(build), **named)

    with django_db_blocker.unblock(), of("one") as one, of("two") as two:
        one.start()
        two.start()
        yield {"one": one, "two": two}


@pytest.fixture(autouse=True)
def queue(processes, settings):
    settings.TEMPORAL_TASK_QUEUE = QUEUE
    until_sync(lambda: {one.name for one in builds.known()} == {"one", "two"}, 60)


def make_current(build: str) -> None:
    """As soon as Temporal has heard of its workers."""

    def taken() -> bool:
        try:
            call_command("runs_build", current=build, stdout=StringIO())
        except KernelError:
            return False
        return f"current    {build}" in shown()

    until_sync(taken, 30)


def shown() -> str:
    out = StringIO()
    call_command("runs_build", stdout=out)
    return out.getvalue()


def gated_run(processes):
    project = make_project()
    processes["one"].tool(project, "gated", "worker-tools-write")
    rule(project, "gated", "require")
    run = begin([calls(call("gated", text="a")), says("done")], ["gated"], project=project)
    return run, waits(run, "awaiting_approval")[0]


def test_a_waiting_run_survives_a_new_version_and_its_roll_back(processes):
    make_current("one")
    first, gate = gated_run(processes)
    assert read(first).build_id == "one"
    make_current("two")
    second, second_gate = gated_run(processes)
    decide(gate, "approve")
    assert (ended(first).state, read(first).build_id, read(second).build_id) == ("completed", "two", "two")
    make_current("one")
    decide(second_gate, "approve")
    assert (ended(second).state, read(second).build_id) == ("completed", "one")
    turns = Event.objects.filter(run_id=first.id, type="turn.started").order_by("sequence")
    assert ["one" in turns[0].envelope, '"build_id":"two"' in turns[1].envelope] == [True, True]


def test_a_worker_that_is_stopped_lets_its_call_come_to_its_end(processes):
    make_current("one")
    one = processes["one"]
    one.hold.touch()
    project = make_project()
    one.tool(project, "write", "worker-tools-write")
    rule(project, "write", "allow")
    run = begin([calls(call("write", text="a")), says("done")], ["write"], project=project)
    until_sync(lambda: bool(done := tool_calls(run)) and f"{done[0].id} a" in one.ledger.lines(), 30)
    one.processes[-1].send_signal(signal.SIGTERM)
    one.hold.unlink()
    assert one.processes[-1].wait(EXIT_SECONDS_MAX) == 0
    [done] = waits(run, "succeeded")
    assert done.attempt == 1
    make_current("two")
    assert ended(run).state == "completed"
    assert one.ledger.lines().count(f"{done.id} a") == 1

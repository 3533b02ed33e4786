"""C31. Cancel and approve at the same moment: exactly one wins, and the states agree with what was done."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from django.db import connection

from approvals.models import Approval
from kernel_project.primitives.errors import Conflict
from outbox.contracts import Actor
from runs.loop import endings
from tests.kernel import (
    Ledger,
    begin_again,
    call,
    calls,
    decide,
    ended,
    make_agent,
    make_project,
    make_tool,
    read,
    says,
    states,
    waits,
    writes_to,
)  # fmt: skip

pytestmark = [
    pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("carrier"), pytest.mark.timeout(400),
]  # fmt: skip

ROUNDS = 100
LIVE_AT_ONCE = 10  # runs that wait while one of them is decided
SCRIPT = [calls(call("pay", text="{input}")), says("done")]


@pytest.fixture
def ledger(tmp_path):
    return Ledger(tmp_path / "ledger")


@pytest.fixture
def version(ledger):
    project = make_project()
    make_tool(project, "pay", writes_to(ledger))
    return make_agent(project, SCRIPT, ["pay"])


def at_once(*acts) -> list[str]:
    """Each act's fate: done, or the code of its conflict."""
    barrier = Barrier(len(acts))

    def one(act) -> str:
        barrier.wait()
        try:
            act()
        except Conflict as error:
            return error.error_code
        finally:
            connection.close()
        return "done"

    with ThreadPoolExecutor(len(acts)) as threads:
        return list(threads.map(one, acts))


def test_in_a_race_exactly_one_wins_and_the_ledger_agrees(version, ledger):
    runs = []
    for number in range(ROUNDS):
        if number % LIVE_AT_ONCE == 0:
            runs += [begin_again(version, f"round-{n}") for n in range(number, number + LIVE_AT_ONCE)]
        run = runs[number]
        (gated,) = waits(run, "awaiting_approval")
        cancel = lambda run=run: endings.request_cancel(run.id, run.project_id, by=Actor("ann", "human"))  # noqa: E731
        approved, cancelled = at_once(lambda gated=gated: decide(gated, "approve", by="bob"), cancel)
        assert (approved, cancelled) in [("done", "done"), ("already_decided", "done"), ("done", "conflict")]
    for run in runs:
        ended(run)
        (_, state), *_ = states(run)
        approval = Approval.objects.get(run_id=run.id)
        paid = [line for line in ledger.lines() if line.split()[1] == read_input(run, version)]
        assert len(paid) <= 1
        assert (approval.state, state) in [
            ("withdrawn", "withdrawn"), ("granted", "withdrawn"), ("granted", "succeeded"), ("granted", "uncertain"),
            ("granted", "failed"),
        ]  # fmt: skip
        assert not paid or state in ("succeeded", "uncertain")


def read_input(run, version) -> str:
    from runs.boundary import artifacts

    return artifacts.read(run.id, read(run).input_digest).decode()


def test_after_the_cancel_a_yes_is_refused_and_a_new_run_starts(version, ledger):
    run = begin_again(version, "one")
    (gated,) = waits(run, "awaiting_approval")
    endings.request_cancel(run.id, run.project_id, by=Actor("ann", "human"))
    with pytest.raises(Conflict):
        decide(gated, "approve")
    again = begin_again(version, "two")
    (gated,) = waits(again, "awaiting_approval")
    decide(gated, "approve")
    assert ended(again).state == "completed"
    assert [line.split()[1] for line in ledger.lines()] == ["two"]

"""C21. A provider's call ids are labels: repeated, empty or enormous ones never share an intent or an approval."""

from __future__ import annotations

import pytest

from approvals.models import Approval
from tests.kernel import (
    Ledger,
    begin,
    begin_again,
    decide,
    ended,
    make_agent,
    make_project,
    make_tool,
    says,
    states,
    tool_calls,
    waits,
    writes_to,
)  # fmt: skip

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("carrier")]


@pytest.fixture
def ledger(tmp_path):
    return Ledger(tmp_path / "ledger")


@pytest.fixture
def project(ledger):
    project = make_project()
    make_tool(project, "pay", writes_to(ledger))
    make_tool(project, "note", writes_to(ledger), idempotent_for_seconds=3600)
    return project


def named(tool: str, label: str, text: str) -> dict:
    return {"tool": tool, "arguments": {"text": text}, "id": label}


def test_two_calls_with_one_id_are_two_requests(project, ledger):
    script = [{"calls": [named("pay", "dup", "a"), named("pay", "dup", "b")]}, says("{result:0.1} | {result:0.2}")]
    run = begin(script, ["pay"], project=project)
    one, other = waits(run, "awaiting_approval", "awaiting_approval")
    assert Approval.objects.filter(run_id=run.id).values("arguments_hash").distinct().count() == 2
    decide(other, "reject", "no")
    decide(one, "approve")
    assert ended(run).state == "completed"
    assert [line.split()[1] for line in ledger.lines()] == ["a"]


@pytest.mark.parametrize("label", ["call_0", "", "x" * 10_000, "\x00"])
def test_an_id_that_comes_back_in_each_turn_is_normal(project, ledger, label):
    script = [{"calls": [named("note", label, "a")]}, {"calls": [named("note", label, "b")]}, says("done")]
    run = ended(begin(script, ["note"], project=project))
    assert run.state == "completed"
    assert states(run) == [("note", "succeeded")] * 2
    assert len({operation.id for operation in tool_calls(run)}) == 2


def test_two_runs_with_the_same_ids_do_not_meet(project, ledger):
    version = make_agent(project, [{"calls": [named("pay", "call_0", "{input}")]}, says("done")], ["pay"])
    first, second = begin_again(version, "first"), begin_again(version, "second")
    waits(first, "awaiting_approval")
    (gated,) = waits(second, "awaiting_approval")
    decide(gated, "approve")
    assert ended(second).state == "completed"
    assert states(first) == [("pay", "awaiting_approval")]
    assert [line.split()[1] for line in ledger.lines()] == ["second"]

"""C20. Each of several parallel calls has an outcome of its own: one done, one waiting for a person, one broken."""

from __future__ import annotations

import pytest

from tests.kernel import (
    Ledger,
    begin,
    call,
    calls,
    decide,
    ended,
    make_project,
    make_tool,
    read,
    said,
    says,
    states,
    waits,
    writes_to,
)  # fmt: skip

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("carrier")]

THREE = calls(call("pay", text="a"), call("gated", text="b"), call("broken", text="c"))


@pytest.fixture
def ledger(tmp_path):
    return Ledger(tmp_path / "ledger")


@pytest.fixture
def project(ledger):
    project = make_project()
    make_tool(project, "pay", writes_to(ledger), idempotent_for_seconds=3600)
    make_tool(project, "gated", writes_to(ledger))
    make_tool(project, "broken", fails, effect="read")
    return project


def fails(dispatch, text):
    raise RuntimeError("no such file")


def three(project, **more):
    script = [THREE, says("{result:0.1} | {result:0.2} | {result:0.3}")]
    return begin(script, ["pay", "gated", "broken"], project=project, **more)


def test_the_model_sees_all_three_in_the_order_of_the_calls(project, ledger):
    run = three(project)
    _, gated, _ = waits(run, "succeeded", "awaiting_approval", "failed")
    decide(gated, "approve")
    assert ended(run).state == "completed"
    assert states(run) == [("pay", "succeeded"), ("gated", "succeeded"), ("broken", "failed")]
    first, second, third = said(run).split(" | ")
    assert (first, second) == ("wrote a", "wrote b")
    assert "had no effect" in third
    assert sorted(line.split()[1] for line in ledger.lines()) == ["a", "b"]


def test_a_no_reaches_its_own_call_with_the_persons_words(project, ledger):
    run = three(project)
    _, gated, _ = waits(run, "succeeded", "awaiting_approval", "failed")
    decide(gated, "reject", 'wrong customer {"role":"system"} 🙅')
    assert ended(run).state == "completed"
    assert 'wrong customer {"role":"system"} 🙅' in said(run).split(" | ")[1]
    assert [line.split()[1] for line in ledger.lines()] == ["a"]


def test_three_gated_calls_are_three_requests(project, ledger):
    script = [calls(*[call("gated", text=text) for text in "abc"]), says("{result:0.1} | {result:0.2} | {result:0.3}")]
    run = begin(script, ["gated"], project=project)
    first, second, third = waits(run, *["awaiting_approval"] * 3)
    decide(second, "approve")
    waits(run, "awaiting_approval", "succeeded", "awaiting_approval")
    decide(third, "reject", "no")
    waits(run, "awaiting_approval", "succeeded", "rejected")
    assert read(run).state == "running"
    decide(first, "approve")
    assert ended(run).state == "completed"
    assert sorted(line.split()[1] for line in ledger.lines()) == ["a", "b"]

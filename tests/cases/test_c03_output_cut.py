"""C03. Nothing of an answer that the length limit cut is executed or offered for approval, however whole it looks."""

from __future__ import annotations

import pytest

from approvals.models import Approval
from runs.models import Operation
from tests.kernel import Ledger, begin, ended, make_project, make_tool, said, says, states, writes_to

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("carrier")]

CUT_IN_THE_MIDDLE = '{"text":"/srv/data","recursive":tr'
CUT_BUT_VALID = '{"text":"100"}'


@pytest.fixture
def ledger(tmp_path):
    return Ledger(tmp_path / "ledger")


@pytest.fixture
def project(ledger):
    project = make_project()
    make_tool(project, "send", writes_to(ledger), idempotent_for_seconds=3600)
    make_tool(project, "gated", writes_to(ledger))
    return project


def cut(*wanted: tuple[str, str], text: str = "") -> dict:
    named = [{"tool": tool, "arguments": arguments} for tool, arguments in wanted]
    return {"calls": named, "text": text, "finish_reason": "length"}


@pytest.mark.parametrize("arguments", [CUT_IN_THE_MIDDLE, CUT_BUT_VALID])
def test_no_call_of_a_cut_answer_is_executed_or_offered(project, ledger, arguments):
    script = [cut(("send", arguments), ("gated", arguments)), says("short") | {"expect": "cut off"}]
    run = ended(begin(script, ["send", "gated"], project=project))
    assert (run.state, said(run)) == ("completed", "short")
    assert (states(run), ledger.lines()) == ([], [])
    assert not Approval.objects.filter(run_id=run.id).exists()


def test_cut_answers_do_not_go_on_for_ever_and_the_run_says_why(project):
    run = ended(begin([{"repeat": 9, **cut(("send", CUT_BUT_VALID))}], ["send"], project=project))
    assert (run.state, run.failure_code) == ("failed", "model_output_cut")
    assert Operation.objects.filter(run=run, position=0).count() == 3


def test_a_cut_without_any_output_is_a_named_model_error(project):
    run = ended(begin([{"repeat": 9, **cut()}], ["send"], project=project))
    assert (run.state, run.failure_code) == ("failed", "model_output_cut")


def test_an_empty_answer_is_no_success(project):
    run = ended(begin([says("  ")], ["send"], project=project))
    assert (run.state, run.failure_code) == ("failed", "model_empty_answer")

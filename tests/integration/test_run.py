"""A run from its start to its end, on a real database, a real Temporal server and a worker."""

from __future__ import annotations

import pytest

from tests.kernel import Ledger, begin, call, calls, ended, make_project, make_tool, said, says, states, told, writes_to

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("carrier")]

ONE_CALL = [
    "run.started", "turn.started", "model.started", "model.completed", "tool.started", "tool.completed",
    "turn.completed", "turn.started", "model.started", "model.completed", "run.completed",
]  # fmt: skip


@pytest.mark.parametrize("configuration", [{}, {"local": True}], ids=["activity", "local activity"])
def test_a_run_calls_a_tool_and_ends_with_an_answer(tmp_path, configuration):
    ledger, project = Ledger(tmp_path / "ledger"), make_project()
    make_tool(project, "note", writes_to(ledger), idempotent_for_seconds=3600, configuration=configuration)
    run = begin([calls(call("note", text="hello")), says("It said: {result:last}")], ["note"], project=project)
    assert ended(run).state == "completed"
    assert states(run) == [("note", "succeeded")]
    assert [line.split()[1] for line in ledger.lines()] == ["hello"]
    assert said(run) == "It said: wrote hello"
    assert told(run) == ONE_CALL


def test_a_model_that_never_ends_is_stopped_by_its_limit_of_turns():
    project = make_project()
    make_tool(project, "look", lambda dispatch, text: "nothing new", effect="read")
    script = [{"repeat": 3, **calls(call("look", text="again"))}, says("I ran out of turns.")]
    run = ended(begin(script, ["look"], project=project, limits={"turns_max": 3}))
    assert (run.state, run.failure_code) == ("failed", "limit_turns")
    assert said(run) == "I ran out of turns."
    assert "policy.limit" in told(run)

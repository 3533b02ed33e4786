"""C01. Arguments that are no JSON object execute nothing, are told to the model, and never poison the next request."""

from __future__ import annotations

import json

import pytest

from tests.fakes.llm_server import LlmServer, openai_answer
from tests.kernel import begin, ended, make_project, make_tool, said, says, states

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("carrier")]

QUERY = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"], "additionalProperties": False}
NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
MALFORMED = ['{"q": "a" "b"}', "null", "[]", '"text"', '{"q":1}}', '{"q": NaN}', '{"q": "a', "\x00"]


@pytest.fixture
def project():
    return make_project()


@pytest.fixture
def asked(project):
    """What the tool was really called with."""
    seen: list[str] = []
    search = lambda dispatch, q: seen.append(q) or f"found {q}"  # noqa: E731
    make_tool(project, "search", search, input_schema=QUERY, effect="read")
    return seen


def raw(arguments: str) -> dict:
    return {"calls": [{"tool": "search", "arguments": arguments}]}


def test_all_kinds_of_malformed_arguments_in_one_answer_execute_nothing(project, asked):
    wanted = [{"tool": "search", "arguments": text} for text in MALFORMED]
    again = raw('{"q": "right"}') | {"expect": "arguments not valid JSON"}
    run = ended(begin([{"calls": wanted}, again, says("{result:last}")], ["search"], project=project))
    assert run.state == "completed"
    assert states(run) == [("search", "blocked")] * len(MALFORMED) + [("search", "succeeded")]
    assert asked == ["right"]
    assert said(run) == "found right"


def test_the_next_request_that_leaves_holds_an_object_for_the_broken_call(project, asked):
    with LlmServer() as provider:
        provider.reply(
            openai_answer(None, [("call_1", "search", '{"q": "a" "b"}')]),
            openai_answer(None, [("call_2", "search", '{"q": "b"}')]),
            openai_answer("done"),
        )
        run = ended(begin([], ["search"], project=project, model="openai:served", base_url=provider.openai_url))
        assert run.state == "completed"
        sent = [call["function"]["arguments"] for call in _sent_calls(provider.seen[-1].body)]
    assert [json.loads(arguments) for arguments in sent] == [{}, {"q": "b"}]
    assert asked == ["b"]


def _sent_calls(body: dict) -> list[dict]:
    return [call for message in body["messages"] for call in message.get("tool_calls") or []]


def test_an_empty_string_is_no_arguments(project):
    called: list[str] = []
    make_tool(project, "status", lambda dispatch: called.append("yes") or "fine", input_schema=NOTHING, effect="read")
    script = [{"calls": [{"tool": "status", "arguments": ""}]}, says("{result:last}")]
    assert ended(begin(script, ["status"], project=project)).state == "completed"
    assert called == ["yes"]


def test_the_same_broken_call_again_and_again_ends_the_run_with_a_name(project, asked):
    script = [{"repeat": 3, **raw('{"q": "a" "b"}')}, says("I give up.")]
    run = ended(begin(script, ["search"], project=project, limits={"same_failure_max": 3}))
    assert (run.state, run.failure_code) == ("failed", "limit_same_failure")
    assert "Traceback" not in run.failure_message
    assert not asked


def test_an_unknown_tool_is_told_to_the_model(project, asked):
    script = [{"calls": [{"tool": "serach", "arguments": {"q": "a"}}]}, says("ok") | {"expect": "there is no tool"}]
    run = ended(begin(script, ["search"], project=project))
    assert run.state == "completed"
    assert states(run) == [("serach", "blocked")]

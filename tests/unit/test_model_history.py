"""C01, C10, C21. What leaves the kernel is a history that every provider accepts, or nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runs.boundary.models import AssistantMessage, Message, ToolCall, ToolDefinition, ToolMessage, UserMessage
from runs.boundary.models.history import BLANK, BrokenHistory, make_safe

ASK = UserMessage(text="go")


def turn(*calls: ToolCall) -> list[Message]:
    """One assistant message and a result for each of its calls."""
    messages: list[Message] = [AssistantMessage(calls=calls)]
    messages += [ToolMessage(call_id=call.id, name=call.name, text=f"result {call.arguments}") for call in calls]
    return messages


def pairs(messages: tuple[Message, ...]) -> tuple[list[str], list[str]]:
    calls = [call.id for message in messages if isinstance(message, AssistantMessage) for call in message.calls]
    return calls, [message.call_id for message in messages if isinstance(message, ToolMessage)]


def test_malformed_arguments_go_out_as_an_object() -> None:
    safe = make_safe([ASK, *turn(ToolCall(id="a", name="search", arguments='{"q": "a" "b"}'))])
    sent = safe.messages[1]
    assert isinstance(sent, AssistantMessage)
    assert sent.calls[0].arguments == "{}"


@pytest.mark.parametrize("odd", ["", "dup", "x" * 10_000, "call_0", "ü\n\x00"])
def test_odd_and_repeated_ids_become_short_and_unique(odd: str) -> None:
    call = ToolCall(id=odd, name="search", arguments="{}")
    calls, results = pairs(make_safe([ASK, *turn(call, call), *turn(call)]).messages)
    assert calls == results == ["call_1_1", "call_1_2", "call_4_1"]


def test_results_of_repeated_ids_keep_their_order() -> None:
    first, second = (ToolCall(id="dup", name="search", arguments=f'{{"q":{n}}}') for n in (1, 2))
    messages = make_safe([ASK, *turn(first, second)]).messages
    assert [message.text for message in messages[2:]] == ['result {"q":1}', 'result {"q":2}']


def test_results_may_come_in_another_order() -> None:
    assistant, one, two = turn(ToolCall(id="a", name="search"), ToolCall(id="b", name="search"))
    assert pairs(make_safe([ASK, assistant, two, one]).messages)[1] == ["call_1_2", "call_1_1"]


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [AssistantMessage(text="hello")],
        [ASK, AssistantMessage(calls=(ToolCall(id="a", name="search"),))],
        [ASK, AssistantMessage(calls=(ToolCall(id="a", name="search"),)), ASK],
        [ASK, ToolMessage(call_id="a", name="search", text="?")],
        [ASK, *turn(ToolCall(id="a", name="search")), ToolMessage(call_id="a", name="search", text="again")],
    ],
)
def test_a_call_without_one_result_is_never_sent(messages: list[Message]) -> None:
    with pytest.raises(BrokenHistory):
        make_safe(messages)


def test_blank_texts_and_empty_answers_cannot_poison_the_history() -> None:
    call = ToolCall(id="a", name="search")
    answered: list[Message] = [AssistantMessage(calls=(call,)), ToolMessage(call_id="a", name="search", text="")]
    safe = make_safe([UserMessage(text=" "), *answered, AssistantMessage(text=" "), ASK]).messages
    assert [message.text for message in safe] == [BLANK, "", BLANK, "go"]


def test_tool_names_are_made_acceptable_and_stay_distinct() -> None:
    tools = [ToolDefinition(name=name) for name in ("git.log", "git/log", "", "x" * 100)]
    safe = make_safe([ASK], tools)
    assert [tool.name for tool in safe.tools] == ["git_log", "git_log_2", "unnamed", "x" * 64]
    assert safe.tool_names["git_log_2"] == "git/log"


def test_a_name_that_the_model_invented_cannot_break_the_next_request() -> None:
    sent = make_safe([ASK, *turn(ToolCall(id="a", name="rm -rf /\x00", arguments="{}"))]).messages[1]
    assert isinstance(sent, AssistantMessage)
    assert sent.calls[0].name == "rm_-rf___"


calls = st.builds(
    ToolCall, id=st.sampled_from(["", "dup", "a"]), name=st.text(max_size=9), arguments=st.text(max_size=9)
)


@given(st.lists(st.lists(calls, max_size=4), max_size=5), st.randoms())
def test_each_call_has_exactly_one_result_after_it(turns: list[list[ToolCall]], random: object) -> None:
    messages: list[Message] = [ASK]
    for made in turns:
        assistant, *results = turn(*made)
        random.shuffle(results)  # type: ignore[attr-defined]
        messages += [assistant, *results]
    sent, answered = pairs(make_safe(messages).messages)
    assert sorted(sent) == sorted(answered)
    assert len(set(sent)) == len(sent)

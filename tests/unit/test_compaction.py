"""A conversation that grows too long is told shorter: oldest first, in pairs, and the same however often it is told."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from runs.boundary.models.contracts import AssistantMessage, ToolCall, ToolMessage, UserMessage
from runs.loop.compaction import RECENT_TURNS, Turn, _size, compact


def turn(number: int, size: int = 5_000, arguments: str = "{}") -> Turn:
    call = f"{number}"
    messages = [
        AssistantMessage(text=f"thought {number}", calls=(ToolCall(id=call, name="t", arguments=arguments),)),
        ToolMessage(call_id=call, name="t", text="x" * size),
    ]
    return Turn(number, messages, {call: (f"artifact://sha256/a{number}", f"artifact://sha256/r{number}")})


def conversation(*turns: Turn) -> list[Turn]:
    return [Turn(0, [UserMessage(text="go")], {}), *turns]


def test_what_fits_stays_as_it_is():
    told = compact(conversation(turn(1), turn(2)), 20_000)
    assert (told.before, told.is_new) == (0, False)
    assert compact(conversation(*map(turn, range(1, 50))), None).before == 0


def test_old_results_and_arguments_become_references_and_the_rest_stays():
    told = compact(conversation(turn(1, arguments='{"a": "' + "y" * 900 + '"}'), *map(turn, range(2, 6))), 22_000)
    first, second = told.messages[1:3]
    assert first.text == "thought 1"
    assert first.calls[0].arguments.startswith('{"left_out":"[')
    assert (
        second.text
        == "[5000 bytes left out, for the conversation grew long; the whole is kept as artifact://sha256/r1]"
    )
    assert told.messages[0].text == "go"
    assert told.messages[-1].text == "x" * 5_000
    assert (told.before, told.is_new) == (4, True)


def test_a_cut_is_new_once_also_when_somebody_says_something_then():
    turns = conversation(*map(turn, range(1, 6)))
    said = Turn(6, [UserMessage(text="and then?")], {})
    assert compact([*turns, said], 22_000, last=5).is_new
    assert not compact([*turns, turn(6, 10), Turn(7, [UserMessage(text="?")], {})], 22_000, last=6).is_new


def test_between_two_cuts_nothing_of_what_was_told_changes():
    """A provider's cache of the beginning serves until the next cut."""
    grown = [compact(conversation(*map(turn, range(1, n))), 60_000) for n in range(2, 60)]
    cuts = [told.before for told in grown]
    assert cuts == sorted(cuts)
    assert [told.is_new for told in grown] == [a != b for a, b in zip([0, *cuts], cuts, strict=False)]
    assert 3 < len(set(cuts)) < 12
    for one, other in itertools.pairwise(grown):
        if one.before == other.before:
            assert other.messages[: len(one.messages)] == one.messages
    assert all(_size(told.messages) <= 60_000 for told in grown)


@given(st.lists(st.integers(0, 9_000), max_size=30), st.integers(1, 60_000))
def test_every_call_keeps_its_one_result_and_the_last_turns_stay_whole(sizes, bytes_max):
    turns = conversation(*(turn(n, size) for n, size in enumerate(sizes, start=1)))
    whole = [message for one in turns for message in one.messages]
    told = compact(turns, bytes_max)
    assert told == compact(turns, bytes_max)
    assert [type(message) for message in told.messages] == [type(message) for message in whole]
    calls = [call.id for message in told.messages if isinstance(message, AssistantMessage) for call in message.calls]
    assert calls == [message.call_id for message in told.messages if isinstance(message, ToolMessage)]
    recent = [message for one in turns[-RECENT_TURNS:] for message in one.messages]
    assert told.messages[-len(recent) :] == recent
    assert _size(told.messages) <= _size(whole)


def test_what_a_person_says_last_takes_no_place_of_a_recent_turn():
    turns = [*conversation(*map(turn, range(1, 6))), Turn(6, [UserMessage(text="hurry")], {})]
    told = compact(turns, 6_000, 5)
    assert [len(m.text) for m in told.messages if isinstance(m, ToolMessage)][-RECENT_TURNS:] == [5_000] * RECENT_TURNS

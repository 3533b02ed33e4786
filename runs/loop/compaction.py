"""A long conversation made to fit: old results and arguments are told as references, by a written rule (docs/runs.md).

Pure, and a function of the turns alone: each turn of the run, each redelivery and each resume comes to the same. What
the model itself said, what people said, and the pairs of call and result all stay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kernel_project.primitives.canonical import canonical_json
from runs.boundary.models.contracts import AssistantMessage, Message, ToolCall, ToolMessage

RECENT_TURNS = 2  # that always stay whole: the model is at work on them
KEPT_SHARE = 2  # a cut goes down to half, so that the next ones come seldom and a provider's cache serves in between
SHORT_BYTES_MAX = 400  # what is no longer than this stays as it is: a reference would save nothing
LEFT_OUT = "[{bytes} bytes left out, for the conversation grew long; the whole is kept as {ref}]"
PIECE_BYTES = 24  # what stands around each message and each call in a request


@dataclass(frozen=True)
class Turn:
    """One turn's messages; `refs` names, by call, where its arguments and its result are kept."""

    number: int
    messages: Sequence[Message]
    refs: Mapping[str, tuple[str, str]]


@dataclass(frozen=True)
class Compacted:
    """The messages to be told. Turns below `before` are told short; 0: none. `is_new`: it is more than before."""

    messages: list[Message]
    before: int = 0
    is_new: bool = False


def compact(turns: Sequence[Turn], bytes_max: int | None, last: int | None = None) -> Compacted:
    """The conversation within a bound, as far as the rule can bring it. `last` is the last turn that was answered."""
    whole = [message for turn in turns for message in turn.messages]
    if bytes_max is None or _size(whole) <= bytes_max:
        return Compacted(whole)
    short = [_short(turn) for turn in turns]
    cuts = _cuts(turns, [_size(one) for one in short], bytes_max)
    cut = cuts[-1]
    told = [message for one in short[:cut] for message in one]
    told += [message for turn in turns[cut:] for message in turn.messages]
    last = turns[-1].number if last is None else last
    earlier = [one for turn, one in zip(turns, cuts, strict=True) if turn.number < last]
    return Compacted(told, turns[cut].number, is_new=not earlier or earlier[-1] != cut) if cut else Compacted(whole)


def _cuts(turns: Sequence[Turn], short: Sequence[int], bytes_max: int) -> list[int]:
    """How many turns were told short after each turn, as the conversation grew. What is said behind the last turn that
    was answered is none of the recent ones.
    """
    whole = [_size(turn.messages) for turn in turns]
    total, cut, cuts = 0, 0, list[int]()
    for place, size in enumerate(whole):
        total += size
        recent = RECENT_TURNS + (not any(isinstance(one, AssistantMessage) for one in turns[place].messages))
        if total > bytes_max:
            while total > bytes_max // KEPT_SHARE and cut <= place - recent:
                total -= whole[cut] - short[cut]
                cut += 1
        cuts.append(cut)
    return cuts


def _size(messages: Sequence[Message]) -> int:
    return sum(PIECE_BYTES + sum(len(text.encode("utf-8", "surrogatepass")) for text in _texts(m)) for m in messages)


def _texts(message: Message) -> list[str]:
    if isinstance(message, AssistantMessage):
        return [message.text, *(f"{call.name}{call.arguments}" for call in message.calls)]
    return [message.text]


def _short(turn: Turn) -> list[Message]:
    return [_shortened(message, turn.refs) for message in turn.messages]


def _shortened(message: Message, refs: Mapping[str, tuple[str, str]]) -> Message:
    match message:
        case AssistantMessage():
            return message.model_copy(update={"calls": tuple(_short_call(call, refs) for call in message.calls)})
        case ToolMessage() if message.call_id in refs and (line := _line(message.text, refs[message.call_id][1])):
            return message.model_copy(update={"text": line})
    return message


def _short_call(call: ToolCall, refs: Mapping[str, tuple[str, str]]) -> ToolCall:
    line = _line(call.arguments, refs[call.id][0]) if call.id in refs else ""
    return call.model_copy(update={"arguments": canonical_json({"left_out": line})}) if line else call


def _line(text: str, ref: str) -> str:
    """What stands in the place of a text; empty for one that is short, or kept nowhere."""
    size = len(text.encode("utf-8", "surrogatepass"))
    return LEFT_OUT.format(bytes=size, ref=ref) if size > SHORT_BYTES_MAX and ref else ""

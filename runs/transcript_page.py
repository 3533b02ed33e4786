"""The conversation of a run for a person's eyes: what the model was told and what it said, some turns at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kernel_project.primitives.errors import KernelError
from runs.boundary.models.contracts import AssistantMessage, Message, ToolMessage, UserMessage
from runs.loop import transcripts
from runs.loop.transcripts import Heard
from runs.models import Run

TURNS_MAX = 20  # on one page
TEXT_CHARS_MAX = 20_000  # of one message; the operation's page has the whole body


@dataclass(frozen=True)
class Said:
    """One message: who said it, and what. `calls` are those that the model wanted."""

    who: str
    text: str
    cut: int = 0
    calls: Sequence[tuple[str, str]] = ()
    is_error: bool = False


@dataclass(frozen=True)
class Conversation:
    """The messages of some turns. `problem` stands in their place when they cannot be put together any more."""

    said: Sequence[Said] = field(default_factory=tuple)
    first_turn: int = 1
    last_turn: int = 0
    earlier: int | None = None
    problem: str = ""


def conversation(run: Run, last_turn: int | None = None) -> Conversation:
    """The turns up to `last_turn`, or the latest; `earlier` is where the page before ends."""
    last = min(run.turn, last_turn or run.turn)
    first = max(1, last - TURNS_MAX + 1)
    earlier = first - 1 if first > 1 else None
    rows = transcripts.rows(run, last, first)
    known = transcripts.heard(run, run.turn, begun=False)
    heard = Heard({turn: said for turn, said in known.by_turn.items() if first <= turn <= last}, known.last)
    try:
        told = transcripts.told(run, rows, heard=heard).messages
    except KernelError as error:
        return Conversation((), first, last, earlier, f"Its bodies cannot be read any more: {error.message}")
    return Conversation([_said(one) for one in (told if first == 1 else told[1:])], first, last, earlier)


def _said(message: Message) -> Said:
    text, cut = _cut(message.text)
    match message:
        case UserMessage():
            return Said("user", text, cut)
        case AssistantMessage():
            return Said("model", text, cut, [(call.name, _cut(call.arguments)[0]) for call in message.calls])
        case ToolMessage():
            return Said(message.name, text, cut, is_error=message.is_error)


def _cut(text: str) -> tuple[str, int]:
    return text[:TEXT_CHARS_MAX], max(0, len(text) - TEXT_CHARS_MAX)

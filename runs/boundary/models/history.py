"""A message list made safe to send: our own ids for calls, an object for every argument, one result per call. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from runs.boundary.models.arguments import ArgumentsError, parse_arguments
from runs.boundary.models.contracts import AssistantMessage, Message, ToolCall, ToolDefinition, ToolMessage, UserMessage

NAME_CHARACTERS_MAX = 64  # OpenAI's limit on a tool's name; Anthropic's is wider
BLANK = "(empty)"  # Anthropic refuses text without a visible character, and with it every later request
_NOT_IN_A_NAME = re.compile(r"[^a-zA-Z0-9_-]")


class BrokenHistory(ValueError):
    """A call without exactly one result, or a result without a call: every provider would refuse it for ever."""


class SafeHistory(NamedTuple):
    """What may go out. `tool_names` maps the names the provider sees to the names of our tools."""

    messages: tuple[Message, ...]
    tools: tuple[ToolDefinition, ...]
    tool_names: dict[str, str]


def make_safe(messages: Sequence[Message], tools: Sequence[ToolDefinition] = ()) -> SafeHistory:
    """Rename calls by their place, so that odd, empty or repeated ids of a provider cannot break the next request.

    Results are matched to the calls of the assistant message before them by id, and in order where an id repeats.
    Arguments that are no JSON object go out as `{}`. Raises BrokenHistory.
    """
    wire_names = _wire_names(tools)
    safe: list[Message] = []
    open_calls: list[tuple[str, str, str]] = []  # (the id in the history, our id, the wire name), not yet answered
    for index, message in enumerate(messages):
        if isinstance(message, ToolMessage):
            safe.append(_answer(message, open_calls, index))
            continue
        if open_calls:
            raise BrokenHistory(f"{len(open_calls)} tool calls have no result before message {index}")
        if isinstance(message, AssistantMessage):
            if not message.text.strip() and not message.calls:
                continue  # an answer without output has nothing to say again, and providers refuse an empty turn
            sent, open_calls = _rename(message, index, wire_names)
            safe.append(sent)
        else:
            safe.append(UserMessage(text=_visible(message.text)))
    if open_calls:
        raise BrokenHistory(f"{len(open_calls)} tool calls have no result at the end of the history")
    if not any(isinstance(message, UserMessage) for message in safe):
        raise BrokenHistory("there is no user message")
    offered = tuple(tool.model_copy(update={"name": wire_names[tool.name]}) for tool in tools)
    return SafeHistory(tuple(safe), offered, {wire: name for name, wire in wire_names.items()})


def object_text(raw: str) -> str:
    """The arguments as a compact JSON object: the same value, or `{}` where they cannot be read."""
    value: dict[str, Any] | ArgumentsError = parse_arguments(raw)
    return "{}" if isinstance(value, ArgumentsError) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _rename(
    message: AssistantMessage, index: int, wire_names: dict[str, str]
) -> tuple[AssistantMessage, list[tuple[str, str, str]]]:
    calls: list[ToolCall] = []
    open_calls: list[tuple[str, str, str]] = []
    for position, call in enumerate(message.calls, start=1):
        ours = f"call_{index}_{position}"
        name = wire_names.get(call.name) or _wire_name(call.name)
        calls.append(ToolCall(id=ours, name=name, arguments=object_text(call.arguments)))
        open_calls.append((call.id, ours, name))
    return AssistantMessage(text=message.text, calls=tuple(calls)), open_calls


def _answer(message: ToolMessage, open_calls: list[tuple[str, str, str]], index: int) -> ToolMessage:
    for place, (theirs, ours, name) in enumerate(open_calls):
        if theirs == message.call_id:
            del open_calls[place]
            return message.model_copy(update={"call_id": ours, "name": name, "text": _visible(message.text)})
    raise BrokenHistory(f"message {index} is a result for a call that is not open")


def _visible(text: str) -> str:
    return text if text.strip() else BLANK


def _wire_names(tools: Sequence[ToolDefinition]) -> dict[str, str]:
    """A name that each provider accepts, for each tool; two tools never share one."""
    names: dict[str, str] = {}
    taken: set[str] = set()
    for tool in tools:
        wire = _wire_name(tool.name)
        number = 2
        while wire in taken:
            wire = f"{_wire_name(tool.name)[: NAME_CHARACTERS_MAX - 6]}_{number}"
            number += 1
        names[tool.name] = wire
        taken.add(wire)
    return names


def _wire_name(name: str) -> str:
    return _NOT_IN_A_NAME.sub("_", name)[:NAME_CHARACTERS_MAX] or "unnamed"

"""Reading providers' answers: odd but usable ones are mended; usage and finish reason are taken as sent. Pure."""

from __future__ import annotations

import json
from typing import Any

from runs.boundary.models.contracts import FinishReason, Usage

CALLS_MAX = 256  # tool calls in one answer; more is a model that has lost its way
TOKENS_MAX = 10**12  # a larger count is not a count

_FINISH_REASONS: dict[str, FinishReason] = {
    "stop": "stop",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "length": "length",
    "content_filter": "content_filter",
    "error": "error",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refusal",
}
_BLOCKS = {"text", "tool_use"}  # thinking and server tools are not asked for, and not needed


def mend_openai(document: dict[str, Any]) -> dict[str, Any]:
    """An answer of the chat completions form with its deviations evened out: null arguments, missing ids, odd usage.

    Servers that imitate the form leave out what the client libraries insist on; that would fail an answer that can be
    used. What is no answer at all is left as it is.
    """
    choices = document.get("choices")
    if not isinstance(choices, list) or not choices:
        return document
    name = document.get("model")
    return {
        "id": _text(document.get("id")),
        "object": "chat.completion",
        "created": 0,
        "model": _text(name),
        "choices": [_mend_choice(choices[0])],
    }


def mend_anthropic(document: dict[str, Any]) -> dict[str, Any]:
    """An answer of the messages form with only the blocks that we read."""
    content = document.get("content")
    if not isinstance(content, list):
        return document
    blocks = [_mend_block(block) for block in content if isinstance(block, dict) and block.get("type") in _BLOCKS]
    return {
        "id": _text(document.get("id")),
        "type": "message",
        "role": "assistant",
        "model": _text(document.get("model")),
        "content": blocks,
        "stop_reason": "end_turn",  # the true one is read from the document itself
        "stop_sequence": None,
        "usage": {"input_tokens": 0, "output_tokens": 0},
    }


def read_usage(document: dict[str, Any]) -> Usage:
    """Tokens of either form. What is absent or no count stays None."""
    usage = document.get("usage")
    if not isinstance(usage, dict):
        return Usage()
    if "prompt_tokens" in usage or "completion_tokens" in usage:
        details = usage.get("prompt_tokens_details")
        cached = details.get("cached_tokens") if isinstance(details, dict) else None
        return Usage(
            input_tokens=_count(usage.get("prompt_tokens")),
            output_tokens=_count(usage.get("completion_tokens")),
            cached_input_tokens=_count(cached),
        )
    fresh, cached = _count(usage.get("input_tokens")), _count(usage.get("cache_read_input_tokens"))
    written = _count(usage.get("cache_creation_input_tokens"))
    return Usage(
        input_tokens=None if fresh is None else fresh + (cached or 0) + (written or 0),
        output_tokens=_count(usage.get("output_tokens")),
        cached_input_tokens=cached,
    )


def read_finish_reason(document: dict[str, Any], *, has_calls: bool) -> FinishReason:
    """The reason in our words; one that we do not know is `unknown`, and so is none."""
    if _first_message(document).get("refusal"):
        return "refusal"
    raw = document.get("stop_reason") or _first_choice(document).get("finish_reason")
    reason = _FINISH_REASONS.get(raw, "unknown") if isinstance(raw, str) else "unknown"
    return "tool_calls" if reason == "stop" and has_calls else reason  # many servers say stop after calls


def read_refusal(document: dict[str, Any]) -> str:
    """The words of a refusal, which the chat completions form keeps beside the text."""
    return _text(_first_message(document).get("refusal"))


def inner_error(document: dict[str, Any]) -> dict[str, Any] | None:
    """The error that a 200 holds, at the top or (gateways) in its first choice, in the form of an error body."""
    for place in (document, _first_choice(document)):
        if place.get("error"):
            return {"error": place["error"]}
    return None


def _first_choice(document: dict[str, Any]) -> dict[str, Any]:
    choices = document.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        return choices[0]
    return {}


def _first_message(document: dict[str, Any]) -> dict[str, Any]:
    message = _first_choice(document).get("message")
    return message if isinstance(message, dict) else {}


def _mend_choice(choice: Any) -> Any:
    if not isinstance(choice, dict) or not isinstance(choice.get("message"), dict):
        return choice
    message = choice["message"]
    calls = message.get("tool_calls")
    mended = {"role": "assistant", "content": message.get("content")}
    if isinstance(calls, list) and calls:
        mended["tool_calls"] = [_mend_call(call) for call in calls]
    return {"index": 0, "message": mended, "finish_reason": "stop"}  # the true one is read from the document itself


def _mend_call(call: Any) -> Any:
    if not isinstance(call, dict) or not isinstance(call.get("function"), dict):
        return call
    function = call["function"]
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        arguments = "" if arguments is None else json.dumps(arguments)
    return {
        "id": _text(call.get("id")),
        "type": "function",
        "function": {"name": _text(function.get("name")), "arguments": arguments},
    }


def _mend_block(block: dict[str, Any]) -> dict[str, Any]:
    if block["type"] == "text":
        return {"type": "text", "text": _text(block.get("text"))}
    return {
        "type": "tool_use",
        "id": _text(block.get("id")),
        "name": _text(block.get("name")),
        "input": block.get("input"),
    }


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _count(value: object) -> int | None:
    usable = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= TOKENS_MAX
    return value if usable and isinstance(value, int) else None


def argument_text(arguments: object) -> str:
    """The raw text of a call's arguments; a provider that sends them as JSON gets them written as text."""
    if isinstance(arguments, str):
        return arguments
    return "" if arguments is None else json.dumps(arguments, ensure_ascii=False)

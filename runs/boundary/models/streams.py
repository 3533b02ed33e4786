"""A streamed answer, put together again as the document that would have come unstreamed, and its text as it comes.

Both forms end with a mark of their own. A stream that breaks off before it has no document. Pure.
"""

from __future__ import annotations

import json
from typing import Any, Protocol

PARTS_MAX = 1_000  # calls or blocks of one answer; a larger index is nonsense and is left out


class Stream(Protocol):
    """One answer on its way."""

    def feed(self, event: dict[str, Any]) -> str:
        """Take one event; returns the text that it adds."""

    def document(self) -> dict[str, Any] | None:
        """The whole answer; None before its end."""


class OpenAiStream:
    """Chunks of the chat completions form."""

    def __init__(self) -> None:
        self._top: dict[str, Any] = {}
        self._message: dict[str, Any] = {"role": "assistant", "content": None}
        self._calls: dict[int, dict[str, Any]] = {}
        self._finish: Any = None
        self._error: Any = None

    def feed(self, event: dict[str, Any]) -> str:
        self._top |= {name: event[name] for name in ("id", "model", "usage") if event.get(name)}
        self._error = self._error or event.get("error")
        choices = event.get("choices")
        choice = _object(choices[0] if isinstance(choices, list) and choices else None)
        self._finish = choice.get("finish_reason") or self._finish
        self._error = self._error or choice.get("error")
        delta = _object(choice.get("delta"))
        for call in delta.get("tool_calls") or []:
            self._call(call)
        if isinstance(refused := delta.get("refusal"), str):
            self._message["refusal"] = self._message.get("refusal", "") + refused
        text = delta.get("content")
        if not isinstance(text, str):
            return ""
        self._message["content"] = (self._message["content"] or "") + text
        return text

    def _call(self, piece: Any) -> None:
        index = piece.get("index", 0) if isinstance(piece, dict) else None
        if not isinstance(index, int) or not 0 <= index < PARTS_MAX:
            return
        call = self._calls.setdefault(index, {"id": "", "type": "function", "function": {"name": "", "arguments": ""}})
        call["id"] = call["id"] or piece.get("id") or ""
        given = _object(piece.get("function"))
        for name in ("name", "arguments"):
            call["function"][name] += given.get(name) if isinstance(given.get(name), str) else ""

    def document(self) -> dict[str, Any] | None:
        if self._error:
            return {"error": self._error}
        if self._finish is None:
            return None
        calls = [self._calls[index] for index in sorted(self._calls)]
        message = self._message | ({"tool_calls": calls} if calls else {})
        return {**self._top, "choices": [{"index": 0, "message": message, "finish_reason": self._finish}]}


class AnthropicStream:
    """Events of the messages form."""

    def __init__(self) -> None:
        self._message: dict[str, Any] = {}
        self._blocks: dict[int, dict[str, Any]] = {}
        self._ended = False
        self._error: Any = None

    def feed(self, event: dict[str, Any]) -> str:
        match event.get("type"):
            case "message_start":
                self._message = dict(_object(event.get("message")))
            case "content_block_start" if isinstance(event.get("content_block"), dict):
                if isinstance(event.get("index"), int) and 0 <= event["index"] < PARTS_MAX:
                    self._blocks[event["index"]] = {**event["content_block"], "json": ""}
            case "content_block_delta":
                return self._delta(self._blocks.get(event.get("index", -1)), _object(event.get("delta")))
            case "message_delta":
                self._message |= {name: value for name, value in _object(event.get("delta")).items() if value}
                self._message["usage"] = _object(self._message.get("usage")) | _object(event.get("usage"))
            case "message_stop":
                self._ended = True
            case "error":
                self._error = event.get("error") or {"type": "error"}
        return ""

    def _delta(self, block: dict[str, Any] | None, delta: dict[str, Any]) -> str:
        if block is not None and isinstance(piece := delta.get("partial_json"), str):
            block["json"] += piece
        text = delta.get("text")
        if block is None or not isinstance(text, str):
            return ""
        block["text"] = (block.get("text") or "") + text
        return text

    def document(self) -> dict[str, Any] | None:
        if self._error:
            return {"error": self._error}
        if not self._ended:
            return None
        return self._message | {"content": [self._block(self._blocks[index]) for index in sorted(self._blocks)]}

    def _block(self, block: dict[str, Any]) -> dict[str, Any]:
        whole = {name: value for name, value in block.items() if name != "json"}
        if block["json"]:
            try:
                whole["input"] = json.loads(block["json"])
            except ValueError:  # cut off by its limit: the caller reads the text and says what is wrong with it
                whole["input"] = block["json"]
        return whole


def event_of(line: bytes) -> dict[str, Any] | None:
    """The event of one line of a stream; None for names, comments, marks and what is no JSON object."""
    if not line.startswith(b"data:"):
        return None
    try:
        event = json.loads(line[5:])
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) else None


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}

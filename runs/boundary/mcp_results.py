"""What an MCP server answered, as an EffectResult. Never raises: when this runs, the effect has happened.

Whether the tool failed is what the server's flag says; no word in a text is ever looked at for that.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Mapping
from typing import Any

from kernel_project.primitives.canonical import NotCanonical, canonical_json, sha256_hex
from runs.boundary.arguments import validate_arguments
from runs.boundary.contracts import EffectResult
from runs.boundary.mcp_sessions import Answer, redact
from runs.boundary.mcp_wire import TRUNCATED_KEY, UNREADABLE_KEY

BLOCKS_MAX = 10_000  # of one result; the rest is counted, not shown
DEPTH_MAX = 60  # of structured content; the canonical form ends at 64
NO_ERROR_TEXT = "The tool reported an error and said nothing about it."
NO_TEXT = "The tool answered without any content."
NEEDS_INPUT = "The tool did not finish: it asks a person or a model for more input, which this kernel does not give."
VISIBLE_NUL = "\u2400"  # ␀; PostgreSQL stores no NUL in text


class _Reader:
    """Reads one answer; collects what was wrong with it on the way."""

    def __init__(self, answer: Answer) -> None:
        self._secrets = answer.secrets
        self.problems: list[str] = [answer.note] if answer.note else []

    def object_to(self, problem: str) -> None:
        if problem not in self.problems:
            self.problems.append(problem)

    def text(self, value: object) -> str:
        if not isinstance(value, str):
            self.object_to("a text in the answer is no text")
            return ""
        text = redact(value, self._secrets)
        if "\0" in text:
            self.object_to("the answer holds NUL bytes, shown as ␀")
            text = text.replace("\0", VISIBLE_NUL)
        return text

    def value(self, value: Any, depth: int = 0) -> Any:
        """The same value with only what JSON and PostgreSQL can hold."""
        if depth > DEPTH_MAX:
            self.object_to(f"the structured content is nested deeper than {DEPTH_MAX} levels; the rest is left out")
            return None
        match value:
            case str():
                return self.text(value)
            case float() if not math.isfinite(value):
                self.object_to("the structured content holds numbers that JSON does not have, shown as text")
                return _number_name(value)
            case dict():
                return {self.text(key): self.value(member, depth + 1) for key, member in value.items()}
            case list():
                return [self.value(member, depth + 1) for member in value]
        return value

    def block(self, block: object) -> str:
        if not isinstance(block, dict):
            self.object_to("a piece of the answer is no object")
            return ""
        match block.get("type"):
            case "text" if "text" in block:
                return self.text(block["text"])
            case "image" | "audio" as kind if isinstance(block.get("data"), str):
                return self._bytes(str(block.get("mimeType") or kind), block["data"])
            case "resource_link" if "uri" in block:
                return self._link(block)
            case "resource" if isinstance(block.get("resource"), dict):
                return self._resource(block["resource"])
        self.object_to("a piece of the answer is of a kind that this kernel does not know")
        return self.text(f"[unknown content: {str(block.get('type'))[:80]}]")

    def _bytes(self, media_type: str, data: str) -> str:
        try:
            raw = base64.b64decode(data, validate=True)
        except (binascii.Error, ValueError):
            self.object_to("a piece of the answer is not valid base64")
            return self.text(f"[{media_type}, {len(data)} characters that are not valid base64]")
        return self.text(f"[{media_type}, {len(raw)} bytes, sha256 {sha256_hex(raw)}]")

    def _link(self, block: Mapping[str, Any]) -> str:
        about = [str(block[key]) for key in ("name", "mimeType", "description") if block.get(key)]
        return self.text(f"[resource {block['uri']}{''.join(', ' + part for part in about)}]")

    def _resource(self, resource: Mapping[str, Any]) -> str:
        uri = str(resource.get("uri"))
        if isinstance(resource.get("text"), str):
            return self.text(f"[resource {uri}]\n{resource['text']}")
        if isinstance(resource.get("blob"), str):
            media_type = str(resource.get("mimeType") or "application/octet-stream")
            return self.text(f"[resource {uri}]\n") + self._bytes(media_type, resource["blob"])
        self.object_to("an embedded resource has neither text nor bytes")
        return self.text(f"[resource {uri}]")


def effect_result(answer: Answer, *, bytes_max: int) -> EffectResult:
    """The answer with at most `bytes_max` bytes of text, and as many of structured content."""
    reader, raw = _Reader(answer), answer.result
    if raw.get("resultType") == "input_required":
        return EffectResult(text=NEEDS_INPUT, is_error=True)
    is_error = raw.get("isError") is True
    structured, too_large = _structured(reader, answer, bytes_max, is_error=is_error)
    text, truncated = cut_text(_text(reader, raw, structured, is_error=is_error), bytes_max)
    meta = raw.get("_meta") if isinstance(raw.get("_meta"), dict) else {}
    if isinstance(meta, dict) and isinstance(unreadable := meta.get(UNREADABLE_KEY), str):
        reader.object_to(reader.text(unreadable)[:500])
        truncated = truncated or meta.get(TRUNCATED_KEY) is True
    return EffectResult(
        text=text,
        is_error=is_error,
        structured=structured,
        invalid="; ".join(reader.problems),
        truncated=truncated or too_large,
    )


def cut_text(text: str, bytes_max: int) -> tuple[str, bool]:
    """The text up to `bytes_max` bytes of UTF-8, never ending inside a character, and whether it was cut."""
    if len(text) * 4 <= bytes_max:
        return text, False
    data = text.encode("utf-8", "replace")
    return (text, False) if len(data) <= bytes_max else (data[:bytes_max].decode("utf-8", "ignore"), True)


def _text(reader: _Reader, raw: Mapping[str, Any], structured: Any, *, is_error: bool) -> str:
    content = raw.get("content")
    if not isinstance(content, list):
        reader.object_to("the answer has no list of content")
        content = []
    shown = [reader.block(block) for block in content[:BLOCKS_MAX]]
    if len(content) > BLOCKS_MAX:
        shown.append(f"[{len(content) - BLOCKS_MAX} more pieces of content are not shown]")
        reader.object_to(f"the answer has more than {BLOCKS_MAX} pieces of content")
    text = "\n".join(shown)
    if text.strip():
        return text
    if structured is not None:
        return json.dumps(structured, ensure_ascii=False)
    return NO_ERROR_TEXT if is_error else NO_TEXT


def _structured(reader: _Reader, answer: Answer, bytes_max: int, *, is_error: bool) -> tuple[Any, bool]:
    """Structured content in a form that can be stored, or nothing and whether it was too large."""
    found = answer.result.get("structuredContent")
    if found is None:
        if answer.output_schema is not None and not is_error:
            reader.object_to("the tool declares structured content and gave none")
        return None, False
    found = reader.value(found)
    try:
        size = len(canonical_json(found).encode())
    except (NotCanonical, RecursionError, ValueError) as error:
        reader.object_to(f"the structured content cannot be stored: {error}"[:300])
        return None, False
    if size > bytes_max:
        reader.object_to(f"the structured content has {size} bytes; at most {bytes_max} are kept")
        return None, True
    if answer.output_schema is not None and not is_error:
        for problem in validate_arguments(answer.output_schema, found)[:3]:
            reader.object_to(f"the structured content does not fit the tool's own schema: {reader.text(problem)}")
    return found, False


def _number_name(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"

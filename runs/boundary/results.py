"""What is kept of an answer, and what of it the model gets to see. One limit for all kinds of tool."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import Any

from obstore.exceptions import BaseError

from kernel_project.primitives.canonical import NotCanonical, canonical_bytes, parse_json
from runs.boundary.artifacts import ARTIFACT_BYTES_MAX, Staged, stage
from runs.boundary.contracts import EffectResult

logger = logging.getLogger(__name__)

SHOWN_BYTES_MAX = 24 * 1024  # of one result, to the model and on pages; a third of it is the tail
TAIL_SHARE = 3
INLINE_TEXT_BYTES_MAX = 1_000  # escaped as JSON (six bytes for one) it still fits into the row
INVALID_CHARS_MAX = 200
MARKED_DEPTH_MAX = 50  # the canonical form ends at 64
INTEGER_DIGITS_MAX = 4_000  # Python writes 4,300
EMPTY = "(the tool answered with no content)"


@dataclass(frozen=True)
class Packed:
    """A result ready for its row: `record` is what the operation refers to, `bodies` are all bytes it needs."""

    record: Staged
    bodies: tuple[Staged, ...]
    invalid: str


def pack(result: EffectResult) -> Packed:
    """Stage a result. Never raises for what a tool said, nor for a full store: the effect has happened, so something is
    always kept."""
    problems = [visible(result.invalid)] if result.invalid else []
    encoded, whole = _within(visible(result.text).encode(), ARTIFACT_BYTES_MAX)
    shown, cut = shorten(encoded)
    record: dict[str, Any] = {"text": shown or EMPTY, "is_error": result.is_error, "bytes": len(encoded)}
    bodies = []
    if cut or result.truncated or not whole:
        record |= {"cut": True, "complete": whole and not result.truncated}
        if full := _staged(encoded, visible(result.media_type), problems):
            bodies.append(full)
            record["full"] = full.ref
    if result.structured is not None and (structured := _structured(result.structured, problems)):
        bodies.append(structured)
        record["structured"] = structured.ref
    if problems:
        record["invalid"] = "; ".join(problems)
    kept = _record(record, problems)
    return Packed(kept, (kept, *bodies), "; ".join(problems)[:INVALID_CHARS_MAX])


def plain(result: EffectResult) -> EffectResult:
    """The same result with only what JSON and UTF-8 can hold, so that it can be kept as a file."""
    text, whole = _within(visible(result.text).encode(), ARTIFACT_BYTES_MAX)
    values = {
        "text": text.decode(),
        "truncated": result.truncated or not whole,
        "invalid": visible(result.invalid),
        "media_type": visible(result.media_type),
        "structured": None if result.structured is None else _marked(result.structured, 0),
    }
    return result.model_copy(update=values)


def _within(encoded: bytes, limit: int) -> tuple[bytes, bool]:
    """At most so many bytes, never half a character; and whether that is all."""
    if len(encoded) <= limit:
        return encoded, True
    return encoded[:limit].decode(errors="ignore").encode(), False


def _staged(data: bytes, media_type: str, problems: list[str]) -> Staged | None:
    try:
        return stage(data, media_type)
    except (BaseError, OSError) as error:  # the object store is full or away; the row must still be written
        logger.warning("a result of %s bytes could not be stored: %s", len(data), type(error).__name__)
        problems.append("what is too long for the row could not be stored")
        return None


def _structured(value: Any, problems: list[str]) -> Staged | None:
    """The structured part, with what JSON does not have written out as text (C70)."""
    try:
        data = canonical_bytes(value)
    except NotCanonical as error:
        problems.append(f"structured content: {visible(error.message)}"[:INVALID_CHARS_MAX])
        data = canonical_bytes(_marked(value, 0))
    if len(data) > ARTIFACT_BYTES_MAX:
        problems.append(f"the structured content of {len(data)} bytes is too large to be kept")
        return None
    return _staged(data, "application/json", problems)


def _marked(value: Any, depth: int) -> Any:
    """The nearest value that has a canonical form: NaN as the text "NaN", and so on."""
    if depth >= MARKED_DEPTH_MAX:
        return "(nested too deeply)"
    match value:
        case None | bool() | str():
            return visible(value) if isinstance(value, str) else value
        case int():
            return value if abs(value) < 10**INTEGER_DIGITS_MAX else "(an integer with too many digits)"
        case float():
            return value if math.isfinite(value) else str(value)
        case dict():
            return {visible(str(key)): _marked(member, depth + 1) for key, member in value.items()}
        case list() | tuple():
            return [_marked(member, depth + 1) for member in value]
    return f"(a value of the type {type(value).__name__})"


def _record(record: dict[str, Any], problems: list[str]) -> Staged:
    """The record itself; if even that cannot be stored, so much of it as fits into the row."""
    if kept := _staged(canonical_bytes(record), "application/json", problems):
        return kept
    text, _ = shorten(record["text"].encode(), INLINE_TEXT_BYTES_MAX)
    invalid = "; ".join(problems)[:INVALID_CHARS_MAX]
    return stage(canonical_bytes({**record, "text": text, "invalid": invalid}), "application/json")


def unpack(data: bytes) -> dict[str, Any]:
    """The record of a result as `pack` wrote it."""
    record: dict[str, Any] = parse_json(data)
    return record


def shorten(encoded: bytes, limit: int = SHOWN_BYTES_MAX) -> tuple[str, bool]:
    """Head and tail of a text with what was left out named between them; whole if it fits. Never splits a character."""
    if len(encoded) <= limit:
        return encoded.decode(), False
    tail_bytes = limit // TAIL_SHARE
    head = encoded[: limit - tail_bytes].decode(errors="ignore")
    tail = encoded[-tail_bytes:].decode(errors="ignore")
    left_out = len(encoded) - len(head.encode()) - len(tail.encode())
    return f"{head}\n[… {left_out} of {len(encoded)} bytes left out …]\n{tail}", True


def visible(text: str) -> str:
    """The text with what PostgreSQL and UTF-8 cannot hold (NUL, half surrogates) written out."""
    if "\x00" in text:
        text = text.replace("\x00", "\\u0000")
    if text.isascii():
        return text
    return text.encode("utf-8", "backslashreplace").decode()

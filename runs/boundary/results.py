"""What is kept of an answer, and what of it the model gets to see. One limit for all kinds of tool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kernel_project.primitives.canonical import NotCanonical, canonical_bytes, parse_json
from runs.boundary.artifacts import Staged, stage
from runs.boundary.contracts import EffectResult

SHOWN_BYTES_MAX = 24 * 1024  # of one result, to the model and on pages; a third of it is the tail
TAIL_SHARE = 3
EMPTY = "(the tool answered with no content)"


@dataclass(frozen=True)
class Packed:
    """A result ready for its row: `record` is what the operation refers to, `bodies` are all bytes it needs."""

    record: Staged
    bodies: tuple[Staged, ...]
    invalid: str


def pack(result: EffectResult) -> Packed:
    """Stage a result. Never raises for what a tool said: the effect has happened, so something is always kept."""
    text = visible(result.text)
    encoded = text.encode()
    shown, cut = shorten(encoded)
    invalid = result.invalid
    record: dict[str, Any] = {"text": shown or EMPTY, "is_error": result.is_error, "bytes": len(encoded)}
    bodies = []
    if cut or result.truncated:
        full = stage(encoded, result.media_type)
        bodies.append(full)
        record |= {"cut": True, "full": full.ref, "complete": not result.truncated}
    if result.structured is not None:
        try:
            structured = stage(canonical_bytes(result.structured), "application/json")
        except NotCanonical as error:  # NaN, Infinity, half a surrogate: marked, not fatal (C70)
            invalid = invalid or f"structured content: {error.message}"
        else:
            bodies.append(structured)
            record["structured"] = structured.ref
    if invalid:
        record["invalid"] = invalid
    staged = stage(canonical_bytes(record), "application/json")
    return Packed(staged, (staged, *bodies), invalid[:200])


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

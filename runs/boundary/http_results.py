"""What an HTTP server answered, as an EffectResult. Never raises: when this runs, the effect has happened."""

from __future__ import annotations

import json
from typing import Any

from kernel_project.primitives.canonical import sha256_hex
from runs.boundary.contracts import EffectResult
from runs.boundary.http_exchange import Answered
from runs.boundary.mcp_config import REDACTED_CHARACTERS_MIN

# Others are read as UTF-8: some of Python's codecs can be made to take very long.
CHARSETS = frozenset({"utf-8", "utf8", "us-ascii", "ascii", "iso-8859-1", "latin-1", "iso-8859-15", "windows-1252"})
TEXTS = ("text/", "application/xml", "application/x-www-form-urlencoded", "application/javascript", "application/yaml")
EXCERPT_CHARACTERS_MAX = 500


def effect_result(answered: Answered, secrets: tuple[str, ...] = ()) -> EffectResult:
    """The body as text and, if it is JSON, as its value; a secret that the server repeated is left out."""
    text, problems = _text(answered, secrets)
    structured = None
    if is_json(answered) and answered.body and not answered.cut and not answered.broken:
        structured, problem = _value(text)
        problems += problem
        if (clean := _without(structured, secrets)) != structured:  # the server had written a secret with escapes
            structured, text = clean, json.dumps(clean, ensure_ascii=False)
    if answered.broken:
        problems.append(answered.broken)
    return EffectResult(
        text=text or f"HTTP status {answered.status} without a body",
        structured=structured,
        invalid="; ".join(problems),
        truncated=answered.cut,
        media_type=media_type(answered) or "text/plain",
    )


def excerpt(answered: Answered, secrets: tuple[str, ...] = ()) -> str:
    """What a server says about an error, short and on one line; empty if it says nothing that is text."""
    text = _text(answered, secrets)[0] if answered.body else ""
    return " ".join(text.split())[:EXCERPT_CHARACTERS_MAX]


def media_type(answered: Answered) -> str:
    return str(answered.headers.get("content-type", "")).partition(";")[0].strip().lower()


def is_json(answered: Answered) -> bool:
    kind = media_type(answered)
    return kind == "application/json" or kind.endswith("+json")


def _text(answered: Answered, secrets: tuple[str, ...]) -> tuple[str, list[str]]:
    kind, size = media_type(answered), len(answered.body)
    if (encoding := answered.headers.get("content-encoding", "identity").strip().lower()) not in ("", "identity"):
        return f"[{size} bytes, encoded as {redacted(encoding, secrets)[:40]}]", ["the answer is compressed unasked"]
    if not answered.body:
        return "", []
    if not (is_json(answered) or kind.startswith(TEXTS) or (not kind and _is_utf8(answered.body))):
        return redacted(f"[{kind or 'bytes'}, {size} bytes, sha256 {sha256_hex(answered.body)}]", secrets), []
    text, problems = _decoded(answered)
    return redacted(text, secrets), problems


def _decoded(answered: Answered) -> tuple[str, list[str]]:
    charset = str(answered.headers.get("content-type", "")).lower().partition("charset=")[2].split(";")[0].strip(' "')
    name = charset if charset in CHARSETS else "utf-8"
    body = answered.body if not answered.cut else answered.body.decode(name, "ignore").encode(name)
    try:
        return body.decode(name), []
    except UnicodeDecodeError:
        return body.decode(name, "backslashreplace"), [f"the answer holds bytes that are no {name}, shown as \\xNN"]


def _is_utf8(body: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return b"\0" not in body


def _value(text: str) -> tuple[Any, list[str]]:
    try:
        return json.loads(text), []
    except (ValueError, RecursionError) as error:
        return None, [f"the answer says that it is JSON, and is not: {str(error)[:100]}"]


def _without(value: Any, secrets: tuple[str, ...]) -> Any:
    match value:
        case str():
            return redacted(value, secrets)
        case dict():
            return {redacted(key, secrets): _without(member, secrets) for key, member in value.items()}
        case list():
            return [_without(item, secrets) for item in value]
    return value


def redacted(text: str, secrets: tuple[str, ...]) -> str:
    """The text without the secrets that were sent, also without the word before a token."""
    for secret in secrets:
        for form in (secret, secret.partition(" ")[2]):
            if len(form) >= REDACTED_CHARACTERS_MIN:
                text = text.replace(form, "[secret]")
    return text

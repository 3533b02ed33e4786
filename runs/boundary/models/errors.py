"""Model failures in one vocabulary: what happened, whether trying again can help, and what may be told about it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from kernel_project.primitives.clock import now
from runs.boundary.models.contracts import ErrorCode

MESSAGE_CHARACTERS_MAX = 500  # enough for a provider's sentence, too little for a prompt that it quotes
RETRY_AFTER_SECONDS_MAX = 3600.0  # a provider that says "next week" is asked again in an hour, or the run ends
SCAN_CHARACTERS_MAX = 20_000  # of a provider's message that the patterns below look at

RETRYABLE: frozenset[ErrorCode] = frozenset(
    {"rate_limited", "overloaded", "server_error", "timeout", "connection", "bad_response"}
)


class ModelError(Exception):
    """A model call that gave no usable answer.

    `retryable`: the same request may succeed later. `may_have_acted`: the provider may have done (and billed) the
    work. `retry_after_seconds`: how long the provider asked us to wait, at most RETRY_AFTER_SECONDS_MAX. `message` is
    one printable line for people, trimmed and without keys.
    """

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        *,
        retryable: bool | None = None,
        may_have_acted: bool = False,
        retry_after_seconds: float | None = None,
        provider_request_id: str = "",
    ) -> None:
        self.code: ErrorCode = code
        self.message = printable(message)[:MESSAGE_CHARACTERS_MAX]
        self.retryable = code in RETRYABLE if retryable is None else retryable
        self.may_have_acted = may_have_acted
        self.retry_after_seconds = retry_after_seconds
        self.provider_request_id = provider_request_id
        super().__init__(f"{code}: {self.message}")


def provider_error(status: int, headers: Mapping[str, str], body: Any, *, secret: str = "") -> ModelError:
    """What an HTTP answer without a usable message means.

    `headers` has lower-case names; `body` is the parsed JSON, or None for anything else. A status below 400 whose
    body is an error, or nothing at all, is the provider's momentary trouble (C05) unless it says something definite.
    """
    type_, code, said = _error_fields(body)
    known = _code_by_content(status, type_, code, said) or _code_by_status(status, code)
    message = said or _without_message(status, headers)
    hint = headers.get("x-should-retry", "").strip().lower()
    return ModelError(
        known,
        redact(message, secret),
        retryable=False if hint == "false" else None,
        may_have_acted=known in {"server_error", "bad_response", "timeout"},
        retry_after_seconds=retry_after_seconds(headers),
        provider_request_id=request_id(headers),
    )


def retry_after_seconds(headers: Mapping[str, str], *, at: datetime | None = None) -> float | None:
    """`retry-after-ms`, or `Retry-After` as seconds or as an HTTP date; capped; None if absent or not readable."""
    milliseconds = _number(headers.get("retry-after-ms", ""))
    raw = headers.get("retry-after", "").strip()
    seconds = milliseconds / 1000 if milliseconds is not None else _number(raw)
    if seconds is None and raw:
        seconds = _seconds_until(raw, at or now())
    return None if seconds is None else min(max(seconds, 0.0), RETRY_AFTER_SECONDS_MAX)


def request_id(headers: Mapping[str, str]) -> str:
    """The provider's own id of the request, for a question to its support."""
    given = headers.get("x-request-id") or headers.get("request-id") or ""
    return printable(given)[:200]


def redact(text: str, secret: str = "") -> str:
    """The text without the key in use, anything shaped like a key, and credentials in URLs."""
    text = text[:SCAN_CHARACTERS_MAX]
    if secret:
        text = text.replace(secret, _REDACTED)
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    return text


def printable(text: str) -> str:
    """One line: whitespace folded, control and direction characters replaced, so that a message cannot deceive."""
    shown = "".join(letter if letter.isprintable() else " " for letter in text[:SCAN_CHARACTERS_MAX])
    return " ".join(shown.split())


_REDACTED = "[redacted]"
_SECRETS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"://[^/\s@]{1,400}@"), f"://{_REDACTED}@"),
    (re.compile(r"\b(?:sk|pk|rk|key|ghp|xox[a-z])[-_][A-Za-z0-9_*.-]{6,400}"), _REDACTED),
    (re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9+/=._~*-]{6,2000}"), rf"\1 {_REDACTED}"),
    (
        re.compile(
            r"(?i)\b((?:x-)?api[-_ ]?key|authorization|access[-_]?token|token|secret|password|signature|sig|key)"
            r"""(["']?\s*[=:]\s*["']?)[^\s"'&,;]{4,2000}"""
        ),
        rf"\1\2{_REDACTED}",
    ),
)

_QUOTA = frozenset(
    {
        "insufficient_quota", "billing_hard_limit_reached", "billing_error", "credit_balance_exhausted",
        "organization_spend_limit_exceeded", "project_spend_limit_exceeded", "organization_usage_limit_exceeded",
        "exceeded_current_quota_error",
    }
)  # fmt: skip
_FILTER = frozenset({"content_filter", "content_policy_violation", "responsibleaipolicyviolation"})
_OVERFLOW = frozenset({"context_length_exceeded", "exceed_context_size_error", "request_too_large"})
_OVERFLOW_PHRASES = (
    "maximum context length",
    "context length exceeded",
    "context window",
    "exceed context limit",  # "input length and `max_tokens` exceed context limit" (Anthropic)
    "prompt is too long",
    "available context size",  # llama.cpp
    "reduce the length of the messages",
    "input is too long",
)
_OVERFLOW_STATUS = frozenset({200, 400, 413, 422, 500})  # some servers answer an overflow with 500


def _code_by_content(status: int, type_: str, code: str, said: str) -> ErrorCode | None:
    """What the provider's own words say, where they are more definite than the status."""
    names = {type_.lower(), code.lower()}
    words = said.lower()
    if names & _OVERFLOW or (status in _OVERFLOW_STATUS and any(phrase in words for phrase in _OVERFLOW_PHRASES)):
        return "context_exceeded"
    if status == 429 and "request too large" in words:
        return "context_exceeded"  # OpenAI's limit per minute is below this one request: waiting never helps
    if names & _QUOTA or "credit balance is too low" in words:
        return "quota_exceeded"
    if names & _FILTER:
        return "content_filter"
    if "overloaded_error" in names or "overloaded" in names:
        return "overloaded"
    return "not_found" if "model_not_found" in names else None


_CODE_BY_STATUS: dict[int, ErrorCode] = {
    401: "authentication",
    402: "quota_exceeded",
    403: "authentication",
    404: "not_found",
    408: "timeout",
    409: "overloaded",  # a lock at the provider; its own clients try again
    413: "context_exceeded",
    425: "overloaded",
    429: "rate_limited",
    503: "overloaded",
    529: "overloaded",
}


def _code_by_status(status: int, code: str) -> ErrorCode:
    if status < 300:
        return "rate_limited" if code in {"429", "rate_limit_exceeded", "rate_limit_error"} else "bad_response"
    if status >= 500:
        return _CODE_BY_STATUS.get(status, "server_error")
    return _CODE_BY_STATUS.get(status, "rejected")


def _error_fields(body: Any) -> tuple[str, str, str]:
    """(type, code, message) of an error body, in the forms that OpenAI, Anthropic and their imitators use."""
    if not isinstance(body, dict):
        return "", "", ""
    error = body.get("error")
    if isinstance(error, str):
        return "", "", error
    if not isinstance(error, dict):
        error = body
    type_, code, said = error.get("type"), error.get("code"), error.get("message") or error.get("detail")
    if isinstance(said, list | dict):
        said = json.dumps(said)
    return _text(type_), _text(code), _text(said)


def _text(value: object) -> str:
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""


def _without_message(status: int, headers: Mapping[str, str]) -> str:
    kind = headers.get("content-type", "").split(";")[0].strip() or "no content type"
    if status < 300:
        return f"the provider answered {status} ({kind}) without a usable answer"
    return f"the provider answered {status} ({kind})"


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) and number >= 0 else None


def _seconds_until(date: str, at: datetime) -> float | None:
    try:
        moment = parsedate_to_datetime(date)
    except (ValueError, TypeError, OverflowError):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - at).total_seconds()

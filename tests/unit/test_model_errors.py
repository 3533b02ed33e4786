"""F1. What a provider's failure means: whether to try again, when, and what people are told."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from runs.boundary.models.contracts import ErrorCode
from runs.boundary.models.errors import (
    MESSAGE_CHARACTERS_MAX,
    RETRY_AFTER_SECONDS_MAX,
    ModelError,
    provider_error,
    redact,
    retry_after_seconds,
)

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ({"retry-after": "7"}, 7),
        ({"retry-after": "0"}, 0),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after-ms": "250", "retry-after": "7"}, 0.25),
        ({"retry-after": format_datetime(NOON + timedelta(seconds=90), usegmt=True)}, 90),
        ({"retry-after": format_datetime(NOON - timedelta(days=1), usegmt=True)}, 0),
        ({"retry-after": "Thu, 01 Jan 2026 12:00:30 -0000"}, 30),
        ({"retry-after": "99999999999"}, RETRY_AFTER_SECONDS_MAX),
        ({"retry-after": "-5"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "Thu, 99 Foo 99999 99:99:99 GMT"}, None),
        ({}, None),
    ],
)
def test_retry_after_is_read_in_every_form_and_capped(header: dict[str, str], seconds: float | None) -> None:
    assert retry_after_seconds(header, at=NOON) == seconds


@pytest.mark.parametrize(
    ("status", "error", "code"),
    [
        (429, {"message": "slow down"}, "rate_limited"),
        (429, {"message": "x", "code": "insufficient_quota"}, "quota_exceeded"),
        (429, {"message": "Request too large for model: Limit 10, Requested 20"}, "context_exceeded"),
        (400, {"message": "Your credit balance is too low to access the API"}, "quota_exceeded"),
        (402, {"message": "x", "type": "billing_error"}, "quota_exceeded"),
        (400, {"message": "x", "code": "context_length_exceeded"}, "context_exceeded"),
        (400, {"message": "input length and `max_tokens` exceed context limit: 9 + 9 > 10"}, "context_exceeded"),
        (400, {"message": "prompt is too long: 9 tokens > 8 maximum"}, "context_exceeded"),
        (413, {"message": "x", "type": "request_too_large"}, "context_exceeded"),
        (400, {"message": "x", "code": "content_filter"}, "content_filter"),
        (400, {"message": "bad field"}, "rejected"),
        (422, {"message": "bad field"}, "rejected"),
        (307, {"message": "x"}, "rejected"),
        (401, {"message": "x"}, "authentication"),
        (403, {"message": "x"}, "authentication"),
        (404, {"message": "x", "code": "model_not_found"}, "not_found"),
        (408, {"message": "x"}, "timeout"),
        (409, {"message": "x"}, "overloaded"),
        (500, {"message": "x"}, "server_error"),
        (500, {"message": "x", "type": "overloaded_error"}, "overloaded"),
        (502, {"message": "x"}, "server_error"),
        (503, {"message": "x"}, "overloaded"),
        (529, {"message": "x"}, "overloaded"),
        (200, {"message": "upstream", "code": 502}, "bad_response"),
        (200, {"message": "slow down", "code": 429}, "rate_limited"),
        (200, {"message": "x", "code": "context_length_exceeded"}, "context_exceeded"),
    ],
)
def test_each_failure_has_one_name(status: int, error: dict[str, object], code: ErrorCode) -> None:
    assert provider_error(status, {}, {"error": error}).code == code


RETRIED = {"rate_limited", "overloaded", "server_error", "timeout", "connection", "bad_response"}
FINAL = {
    "quota_exceeded",
    "authentication",
    "not_found",
    "rejected",
    "context_exceeded",
    "content_filter",
    "unsupported",
}


@pytest.mark.parametrize("code", sorted(RETRIED | FINAL))
def test_only_momentary_trouble_is_retried(code: ErrorCode) -> None:
    assert ModelError(code, "x").retryable == (code in RETRIED)


def test_the_provider_can_forbid_a_retry() -> None:
    assert not provider_error(500, {"x-should-retry": "false"}, None).retryable


@pytest.mark.parametrize(
    "body", [None, [], "text", {"error": None}, {"error": "boom"}, {"error": {"message": [1]}}, {"detail": "x"}]
)
def test_any_body_gives_a_sentence(body: object) -> None:
    assert provider_error(500, {"content-type": "text/html"}, body).message


def test_the_message_is_one_trimmed_line() -> None:
    error = provider_error(400, {}, {"error": {"message": "a\n\x1b[2J\u202eb" + "x" * 10_000}})
    assert error.message.isprintable()
    assert len(error.message) == MESSAGE_CHARACTERS_MAX


@pytest.mark.parametrize(
    "text",
    [
        "Incorrect API key provided: sk-proj-SECRET123*****abcd.",
        "header Authorization: Bearer SECRET123SECRET",
        "x-api-key=SECRET123",
        '{"api_key": "SECRET123"}',
        "GET https://user:SECRET123@host/v1 failed",
        "GET https://host/v1?key=SECRET123&x=1 failed",
        "plain SECRET123 in the text",
    ],
)
def test_keys_and_credentials_are_never_repeated(text: str) -> None:
    assert "SECRET123" not in redact(text, secret="SECRET123")
    if "plain" not in text:
        assert "SECRET123" not in redact(text)


def test_redaction_of_hostile_text_is_quick() -> None:
    redact("key" * 100_000 + "://" * 100_000)

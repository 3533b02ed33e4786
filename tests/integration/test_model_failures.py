"""F1. A model provider fails in every way it can: one request each time, and a classified error without secrets."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from runs.boundary.models import ApiKeyReference, ModelError, aclose, ask
from runs.boundary.models import exchange as wire
from tests.fakes.llm_server import LlmServer, Reply, failure, openai_answer
from tests.fakes.model_requests import ANTHROPIC, OPENAI, Provider, question

AT_ONCE_SECONDS = 10  # the server would answer after 30
both = pytest.mark.parametrize("provider", [OPENAI, ANTHROPIC], ids=lambda provider: provider.name)


@pytest.fixture
def server() -> Iterator[LlmServer]:
    with LlmServer() as running:
        yield running


@pytest.fixture(autouse=True)
async def _close() -> AsyncIterator[None]:
    yield
    await aclose()


async def fail(provider: Provider, server: LlmServer, reply: Reply, **changes: object) -> ModelError:
    """The error of one call, after which the server has seen exactly one request."""
    server.reply(reply)
    with pytest.raises(ModelError) as failed:
        await ask(provider.question(server, **changes))
    assert len(server.seen) == 1
    assert failed.value.__cause__ is None
    return failed.value


@both
async def test_429_with_seconds(provider: Provider, server: LlmServer) -> None:
    error = await fail(provider, server, failure(429, "slow down", headers={"Retry-After": "7"}))
    assert (error.code, error.retryable, error.may_have_acted) == ("rate_limited", True, False)
    assert error.retry_after_seconds == 7
    assert error.message == "slow down"
    assert error.provider_request_id == "req-failed-1"


@both
async def test_429_with_a_date(provider: Provider, server: LlmServer) -> None:
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=60), usegmt=True)
    error = await fail(provider, server, failure(429, "slow down", headers={"Retry-After": date}))
    assert error.retry_after_seconds == pytest.approx(60, abs=3)


@pytest.mark.parametrize(
    ("reply", "code", "retryable", "may_have_acted"),
    [
        (failure(429, "no money", code="insufficient_quota"), "quota_exceeded", False, False),
        (failure(400, "no money", type_="billing_error"), "quota_exceeded", False, False),
        (failure(500, "boom"), "server_error", True, True),
        (failure(502, "boom"), "server_error", True, True),
        (failure(503, "busy"), "overloaded", True, False),
        (failure(529, "busy", type_="overloaded_error"), "overloaded", True, False),
        (failure(400, "bad field"), "rejected", False, False),
        (failure(401, "who?"), "authentication", False, False),
        (failure(403, "no"), "authentication", False, False),
        (failure(404, "no model"), "not_found", False, False),
        (failure(408, "late"), "timeout", True, True),
        (failure(413, "too big"), "context_exceeded", False, False),
        (failure(400, "filtered", code="content_filter"), "content_filter", False, False),
        (Reply(status=502, raw="<html>bad gateway</html>", content_type="text/html"), "server_error", True, True),
        (Reply(status=500, raw=""), "server_error", True, True),
        (Reply(status=307, raw="", headers={"Location": "http://127.0.0.1:1/"}), "rejected", False, False),
    ],
)
@both
async def test_http_failures(
    provider: Provider, reply: Reply, code: str, retryable: bool, may_have_acted: bool, server: LlmServer
) -> None:
    error = await fail(provider, server, reply)
    assert (error.code, error.retryable, error.may_have_acted) == (code, retryable, may_have_acted)
    assert error.message


@both
async def test_too_slow_an_answer_is_a_timeout(provider: Provider, server: LlmServer) -> None:
    started = time.monotonic()
    error = await fail(provider, server, Reply(delay_seconds=30), timeout_seconds=0.3)
    assert (error.code, error.retryable, error.may_have_acted) == ("timeout", True, True)
    assert time.monotonic() - started < AT_ONCE_SECONDS


@both
async def test_an_answer_that_drips_for_ever_is_a_timeout(provider: Provider, server: LlmServer) -> None:
    error = await fail(provider, server, Reply(raw=" " * 1000, drip=True), timeout_seconds=0.3)
    assert (error.code, error.may_have_acted) == ("timeout", True)


@pytest.mark.parametrize("drop", ["before", "middle"])
@both
async def test_a_dropped_connection_may_have_acted(provider: Provider, drop: str, server: LlmServer) -> None:
    error = await fail(provider, server, Reply(body=openai_answer().body, drop=drop))  # type: ignore[arg-type]
    assert (error.code, error.retryable, error.may_have_acted) == ("connection", True, True)


@both
async def test_a_refused_connection_has_not_acted(provider: Provider) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(ModelError) as failed:
            await ask(question(model=provider.model, base_url=url))
    assert (failed.value.code, failed.value.retryable, failed.value.may_have_acted) == ("connection", True, False)


@both
async def test_an_answer_without_end_is_cut_off(
    provider: Provider, server: LlmServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "ANSWER_BYTES_MAX", 1000)
    error = await fail(provider, server, Reply(raw=" " * 5000))
    assert error.code == "bad_response"
    assert "larger than 1000 bytes" in error.message


@both
async def test_the_key_is_in_no_error(provider: Provider, server: LlmServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OURS_API_KEY", "canary-123456")
    reply = failure(401, "Incorrect API key provided: canary-123456. See https://u:p@host/?key=abcdef")
    error = await fail(provider, server, reply, api_key_ref=ApiKeyReference(from_env="OURS_API_KEY"))
    assert "canary" not in str(error)
    assert "abcdef" not in str(error)
    assert "canary" not in repr(vars(error))


@both
async def test_cancelling_ends_the_call_at_once(provider: Provider, server: LlmServer) -> None:
    server.reply(Reply(delay_seconds=30))
    call = asyncio.create_task(ask(provider.question(server, timeout_seconds=30)))
    async with asyncio.timeout(10):
        while not server.seen:
            await asyncio.sleep(0.01)
    started = time.monotonic()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert time.monotonic() - started < AT_ONCE_SECONDS


async def test_a_library_that_would_retry_is_stopped(server: LlmServer, monkeypatch: pytest.MonkeyPatch) -> None:
    from runs.boundary.models import pydantic_ai_models as real

    settings = real._settings
    monkeypatch.setattr(real, "_settings", lambda request: settings(request) | {"max_retries": 2})
    error = await fail(OPENAI, server, failure(500, "boom", headers={"Retry-After": "0"}))
    assert error.code == "server_error"


@pytest.mark.parametrize("model", ["gpt-4", "azure:x", "openai:", ":x", "", "scripted: "])
async def test_an_unknown_provider_is_a_clear_error(model: str) -> None:
    with pytest.raises(ModelError, match="openai:NAME, anthropic:NAME or scripted:FILE") as failed:
        await ask(question(model=model))
    assert failed.value.code == "unsupported"

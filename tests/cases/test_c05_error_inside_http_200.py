"""C05. HTTP 200 with an error body or with everything null is the provider's momentary trouble, never a trace."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from runs.boundary.models import ModelError, aclose, ask
from runs.boundary.models.errors import MESSAGE_CHARACTERS_MAX
from tests.fakes.llm_server import LlmServer, Reply, openai_answer
from tests.fakes.model_requests import ANTHROPIC, OPENAI, Provider

both = pytest.mark.parametrize("provider", [OPENAI, ANTHROPIC], ids=lambda provider: provider.name)


@pytest.fixture
def server() -> Iterator[LlmServer]:
    with LlmServer() as running:
        yield running


@pytest.fixture(autouse=True)
async def _close() -> AsyncIterator[None]:
    yield
    await aclose()


async def fail(provider: Provider, server: LlmServer, reply: Reply) -> ModelError:
    server.reply(reply)
    with pytest.raises(ModelError) as failed:
        await ask(provider.question(server))
    return failed.value


UNUSABLE: list[Reply] = [
    Reply(body={"error": {"code": 502, "message": "upstream"}}),
    Reply(body={"error": "upstream"}),
    Reply(body={"type": "error", "error": {"type": "api_error", "message": "upstream"}}),
    Reply(body={"id": None, "choices": None, "model": None, "usage": None, "content": None}),
    Reply(body={"choices": [], "content": None}),
    Reply(body={"choices": [None], "content": "text"}),
    Reply(body={"choices": [{"message": None}], "content": {}}),
    Reply(body={"choices": "text", "content": 7}),
    Reply(body={}),
    Reply(body=[]),
    Reply(body=None),
    Reply(body="text"),
    Reply(raw="<html><body>Welcome</body></html>", content_type="text/html"),
    Reply(raw="<html><body>Welcome</body></html>"),
    Reply(raw="OK", content_type="text/plain"),
    Reply(raw=""),
    Reply(raw='{"choices": ['),
    Reply(raw="[" * 100_000),
    Reply(raw="        ", headers={"Content-Encoding": "gzip"}),
]


@pytest.mark.parametrize("reply", UNUSABLE)
@both
async def test_an_unusable_200_is_transient(provider: Provider, reply: Reply, server: LlmServer) -> None:
    error = await fail(provider, server, reply)
    assert (error.code, error.retryable, error.may_have_acted) == ("bad_response", True, True)
    assert len(server.seen) == 1
    for trace in ("validation error", "Traceback", "pydantic", "NoneType"):
        assert trace not in str(error)


@both
async def test_the_providers_own_words_are_kept_and_trimmed(provider: Provider, server: LlmServer) -> None:
    error = await fail(provider, server, Reply(body={"error": {"code": 502, "message": "upstream " + "x" * 5000}}))
    assert error.message.startswith("upstream xxx")
    assert len(error.message) == MESSAGE_CHARACTERS_MAX


async def test_an_error_beside_an_answer_is_an_error(server: LlmServer) -> None:
    body: dict[str, Any] = openai_answer("half of it").body
    body["choices"][0]["error"] = {"code": 502, "message": "the upstream broke off"}
    assert (await fail(OPENAI, server, Reply(body=body))).message == "the upstream broke off"


@both
async def test_the_next_try_succeeds(provider: Provider, server: LlmServer) -> None:
    await fail(provider, server, UNUSABLE[0])
    assert (await ask(provider.question(server))).text == "hello"

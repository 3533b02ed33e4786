"""C07. A context that is too long is recognised in the words of each provider: the same request never helps."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from runs.boundary.models import ModelError, aclose, ask
from tests.fakes.llm_server import LlmServer, Reply, failure
from tests.fakes.model_requests import ANTHROPIC, OPENAI, Provider

OPENAI_SAYS = "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens."


@pytest.fixture
def server() -> Iterator[LlmServer]:
    with LlmServer() as running:
        yield running


@pytest.fixture(autouse=True)
async def _close() -> AsyncIterator[None]:
    yield
    await aclose()


@pytest.mark.parametrize(
    ("provider", "reply"),
    [
        (OPENAI, failure(400, OPENAI_SAYS, type_="invalid_request_error", code="context_length_exceeded")),
        (OPENAI, failure(400, OPENAI_SAYS)),
        (OPENAI, failure(400, "the request exceeds the available context size", type_="exceed_context_size_error")),
        (OPENAI, failure(429, "Request too large for gpt-some on tokens per min: Limit 30000, Requested 40000")),
        (OPENAI, Reply(body={"error": {"code": "context_length_exceeded", "message": OPENAI_SAYS}})),
        (ANTHROPIC, failure(400, "prompt is too long: 210000 tokens > 200000 maximum", type_="invalid_request_error")),
        (ANTHROPIC, failure(400, "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000")),
        (ANTHROPIC, failure(413, "Request exceeds the maximum size", type_="request_too_large")),
    ],
)
async def test_context_overflow_is_not_retryable(provider: Provider, reply: Reply, server: LlmServer) -> None:
    server.reply(reply)
    with pytest.raises(ModelError) as failed:
        await ask(provider.question(server))
    assert (failed.value.code, failed.value.retryable, failed.value.may_have_acted) == (
        "context_exceeded",
        False,
        False,
    )
    assert len(server.seen) == 1

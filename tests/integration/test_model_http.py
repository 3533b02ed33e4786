"""One call to a real model is one HTTP request: what leaves, and what its answer becomes."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator

import pytest

from runs.boundary.models import (
    ApiKeyReference,
    AssistantMessage,
    ModelError,
    ToolCall,
    ToolMessage,
    Usage,
    UserMessage,
    aclose,
    ask,
    parse_arguments,
)
from runs.boundary.models import pydantic_ai_models as real
from tests.fakes.llm_server import LlmServer, Reply, anthropic_answer, openai_answer
from tests.fakes.model_requests import ANTHROPIC, OPENAI, Provider, question

both = pytest.mark.parametrize("provider", [OPENAI, ANTHROPIC], ids=lambda provider: provider.name)


@pytest.fixture
def server() -> Iterator[LlmServer]:
    with LlmServer() as running:
        yield running


@pytest.fixture(autouse=True)
async def _close() -> AsyncIterator[None]:
    yield
    await aclose()


@both
async def test_an_answer_says_who_gave_it(provider: Provider, server: LlmServer) -> None:
    answer = await ask(provider.question(server))
    assert (answer.text, answer.calls, answer.finish_reason) == ("hello", (), "stop")
    assert (answer.provider, answer.model) == (f"{provider.name}-compatible", "served-model")
    assert answer.provider_request_id == f"req-{provider.name}-1"
    assert answer.response_id in {"chatcmpl-1", "msg_1"}
    assert 0 < answer.seconds < 5
    assert answer.usage.input_tokens == 12
    assert answer.usage.output_tokens == 5


@both
async def test_the_operation_is_named_in_the_request(provider: Provider, server: LlmServer) -> None:
    await ask(provider.question(server, instructions="be brief", temperature=0.5))
    (seen,) = server.seen
    assert seen.headers["idempotency-key"] == seen.headers["x-client-request-id"] == "operation-1"
    assert seen.body["temperature"] == 0.5
    assert seen.body.get("max_tokens", seen.body.get("max_completion_tokens")) == 100
    assert "be brief" in str(seen.body["messages"][0] if provider is OPENAI else seen.body["system"])


async def test_calls_keep_the_raw_text_of_openai(server: LlmServer) -> None:
    server.reply(openai_answer(None, [("call_a", "search", '{"q": "a" "b"}'), ("call_b", "search", '{ "q":1 }')]))
    answer = await ask(OPENAI.question(server))
    assert answer.calls == (
        ToolCall(id="call_a", name="search", arguments='{"q": "a" "b"}'),
        ToolCall(id="call_b", name="search", arguments='{ "q":1 }'),
    )
    assert answer.finish_reason == "tool_calls"


async def test_calls_of_anthropic_become_text(server: LlmServer) -> None:
    server.reply(anthropic_answer("looking", [("toolu_1", "search", {"q": "Zoë", "n": 9007199254740993})]))
    answer = await ask(ANTHROPIC.question(server))
    assert answer.text == "looking"
    assert answer.calls == (ToolCall(id="toolu_1", name="search", arguments='{"q": "Zoë", "n": 9007199254740993}'),)


@both
async def test_the_history_goes_out_with_our_ids_and_objects(provider: Provider, server: LlmServer) -> None:
    broken = ToolCall(id="dup", name="search", arguments='{"q": "a" "b"}')
    results = [ToolMessage(call_id="dup", name="search", text="no", is_error=True) for _ in range(2)]
    history = (UserMessage(text="go"), AssistantMessage(calls=(broken, broken)), *results)
    await ask(provider.question(server, messages=history))
    messages = server.seen[0].body["messages"]
    if provider is OPENAI:
        calls = messages[1]["tool_calls"]
        assert [(call["id"], call["function"]["arguments"]) for call in calls] == [
            ("call_1_1", "{}"),
            ("call_1_2", "{}"),
        ]
        assert [message["tool_call_id"] for message in messages[2:]] == ["call_1_1", "call_1_2"]
    else:
        calls, answers = messages[1]["content"], messages[2]["content"]
        assert [(call["id"], call["input"]) for call in calls] == [("call_1_1", {}), ("call_1_2", {})]
        assert [(answer["tool_use_id"], answer["is_error"]) for answer in answers] == [
            ("call_1_1", True),
            ("call_1_2", True),
        ]


@both
async def test_a_broken_history_never_leaves(provider: Provider, server: LlmServer) -> None:
    history = (UserMessage(text="go"), AssistantMessage(calls=(ToolCall(id="a", name="search"),)))
    with pytest.raises(ModelError, match="no result") as failed:
        await ask(provider.question(server, messages=history))
    assert failed.value.code == "unsupported"
    assert not server.seen


@pytest.mark.parametrize("odd", ["", "x" * 10_000, "dup", None])
async def test_odd_call_ids_are_only_labels(odd: str | None, server: LlmServer) -> None:
    server.reply(openai_answer(None, [(odd, "search", "{}"), (odd, "search", "{}")]))
    answer = await ask(OPENAI.question(server))
    results = tuple(ToolMessage(call_id=call.id, name=call.name, text="ok") for call in answer.calls)
    next_history = (UserMessage(text="go"), AssistantMessage(calls=answer.calls), *results)
    await ask(OPENAI.question(server, messages=next_history))
    sent = server.seen[1].body["messages"]
    assert [call["id"] for call in sent[1]["tool_calls"]] == ["call_1_1", "call_1_2"]


@pytest.mark.parametrize("odd", [None, {"q": 1}, [1], 7, "", '"text"'])
async def test_odd_arguments_are_handed_on_for_the_loop_to_judge(odd: object, server: LlmServer) -> None:
    server.reply(openai_answer(None, [("a", "search", odd)]), anthropic_answer(None, [("a", "search", odd)]))
    for provider in (OPENAI, ANTHROPIC):
        answer = await ask(provider.question(server))
        assert isinstance(answer.calls[0].arguments, str)
        parse_arguments(answer.calls[0].arguments)


async def test_not_a_number_is_refused_by_the_parser_not_lost(server: LlmServer) -> None:
    raw = anthropic_answer(None, [("a", "search", {"q": "@"})]).payload().decode().replace('"@"', "NaN")
    server.reply(Reply(raw=raw))
    answer = await ask(ANTHROPIC.question(server))
    assert answer.calls[0].arguments == '{"q": NaN}'


@both
async def test_text_survives_and_half_a_surrogate_does_not_break_it(provider: Provider, server: LlmServer) -> None:
    server.reply(provider.answer("Zoë 😀 \u202e \ud83d"))
    assert (await ask(provider.question(server))).text == "Zoë 😀 \u202e �"
    await ask(provider.question(server, messages=(UserMessage(text="Zoë 😀\x00"),)))
    assert "Zoë 😀\x00" in str(server.seen[1].body["messages"][-1]["content"]).replace("\\x00", "\x00")


@pytest.mark.parametrize(
    "usage", [None, {}, {"prompt_tokens": None}, {"prompt_tokens": -1}, "many", {"input_tokens": True}]
)
@both
async def test_unknown_usage_is_unknown_and_not_zero(provider: Provider, usage: object, server: LlmServer) -> None:
    server.reply(provider.answer(usage=usage))
    assert (await ask(provider.question(server))).usage == Usage()


async def test_cached_tokens_are_counted_as_part_of_the_input(server: LlmServer) -> None:
    details = {"prompt_tokens": 9, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 4}}
    server.reply(openai_answer(usage=details))
    assert (await ask(OPENAI.question(server))).usage == Usage(input_tokens=9, output_tokens=1, cached_input_tokens=4)
    assert (await ask(ANTHROPIC.question(server))).usage == Usage(
        input_tokens=12, output_tokens=5, cached_input_tokens=2
    )


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (openai_answer("cut", finish_reason="length"), "length"),
        (openai_answer(None, [("a", "search", '{"q":tr')], finish_reason="length"), "length"),
        (openai_answer(None, finish_reason="length"), "length"),
        (openai_answer("", finish_reason="content_filter"), "content_filter"),
        (openai_answer(None, [("a", "search", "{}")], finish_reason="stop"), "tool_calls"),
        (openai_answer("odd", finish_reason="guardrail"), "unknown"),
        (openai_answer("odd", finish_reason="error"), "error"),
    ],
)
async def test_finish_reasons_of_openai(reply: Reply, reason: str, server: LlmServer) -> None:
    server.reply(reply)
    assert (await ask(OPENAI.question(server))).finish_reason == reason


@pytest.mark.parametrize(
    ("stop_reason", "reason"),
    [
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("refusal", "refusal"),
        ("stop_sequence", "stop"),
        ("pause_turn", "unknown"),
        ("something_new", "unknown"),
    ],
)
async def test_finish_reasons_of_anthropic(stop_reason: str, reason: str, server: LlmServer) -> None:
    server.reply(anthropic_answer(None, stop_reason=stop_reason))
    answer = await ask(ANTHROPIC.question(server))
    assert (answer.finish_reason, answer.text, answer.calls) == (reason, "", ())


async def test_a_refusal_says_why(server: LlmServer) -> None:
    body = openai_answer(None).body
    body["choices"][0]["message"]["refusal"] = "I will not."
    server.reply(Reply(body=body))
    answer = await ask(OPENAI.question(server))
    assert (answer.finish_reason, answer.text) == ("refusal", "I will not.")


async def test_blocks_that_nobody_asked_for_are_left_out(server: LlmServer) -> None:
    body = anthropic_answer("hello").body
    body["content"].insert(0, {"type": "thinking", "thinking": "hm", "signature": "s"})
    body["content"].append({"type": "hologram", "data": 1})
    server.reply(Reply(body=body))
    assert (await ask(ANTHROPIC.question(server))).text == "hello"


async def test_too_many_calls_at_once_are_a_bad_response(server: LlmServer) -> None:
    server.reply(openai_answer(None, [("a", "search", "{}")] * 300))
    with pytest.raises(ModelError, match="300 tool calls at once"):
        await ask(OPENAI.question(server))


async def test_a_name_of_a_tool_comes_back_as_we_know_it(server: LlmServer) -> None:
    tool = question().tools[0].model_copy(update={"name": "git.log"})
    server.reply(openai_answer(None, [("a", "git_log", "{}"), ("b", "unknown tool", "{}")]))
    answer = await ask(OPENAI.question(server, tools=(tool,)))
    assert [call.name for call in answer.calls] == ["git.log", "unknown tool"]


@both
async def test_a_key_is_named_never_given(
    provider: Provider, server: LlmServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OURS_API_KEY", "sk-canary-123456")
    await ask(provider.question(server, api_key_ref=ApiKeyReference(from_env="OURS_API_KEY")))
    monkeypatch.setenv("OURS_API_KEY", "sk-rotated-123456")
    await ask(provider.question(server, api_key_ref=ApiKeyReference(from_env="OURS_API_KEY")))
    assert [seen.headers["authorization"] for seen in server.seen] == [
        "Bearer sk-canary-123456",
        "Bearer sk-rotated-123456",
    ]


@both
async def test_the_usual_key_is_not_sent_to_another_address(
    provider: Provider, server: LlmServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-canary-123456")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-canary-123456")
    await ask(provider.question(server))
    assert "sk-canary" not in str(server.seen[0].headers)


@pytest.mark.parametrize("name", ["SECRET_KEY", "DATABASE_URL", "openai_api_key", "A_API_KEY\n", "API_KEY=1"])
def test_no_other_variable_can_be_named_as_a_key(name: str) -> None:
    with pytest.raises(ValueError, match="_API_KEY"):
        ApiKeyReference(from_env=name)


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "ftp://host",
        "host/v1",
        "http://",
        "http://u:p@host",
        "http://host/?key=1",
        "http://host:x",
    ],
)
def test_a_base_url_is_a_plain_address(url: str) -> None:
    with pytest.raises(ValueError, match="base_url"):
        question(base_url=url)


async def test_a_missing_key_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ModelError, match="OPENAI_API_KEY is not set") as failed:
        await ask(question(model="openai:gpt-some"))
    assert (failed.value.code, failed.value.retryable, failed.value.may_have_acted) == ("authentication", False, False)


@both
async def test_connections_are_reused_and_closed(provider: Provider, server: LlmServer) -> None:
    for _ in range(3):
        await ask(provider.question(server))
    clients = real._clients[asyncio.get_running_loop()]
    (client,) = clients.values()
    await aclose()
    assert client.http.is_closed
    assert asyncio.get_running_loop() not in real._clients
    gc.collect()  # an unclosed connection would warn here, and warnings are errors


async def test_the_number_of_clients_has_a_limit(server: LlmServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(real, "ENDPOINTS_MAX", 2)
    for path in ("/a/v1", "/b/v1", "/c/v1"):
        await ask(question(model=OPENAI.model, base_url=server.anthropic_url + path))
    clients = real._clients[asyncio.get_running_loop()]
    assert len(clients) == 2

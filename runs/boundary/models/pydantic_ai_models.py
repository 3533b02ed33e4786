"""The `openai:` and `anthropic:` providers, through pydantic-ai's direct request. Slow to import: workers only.

One call is one HTTP request. Nothing here retries, and no key leaves this module except in the request's own header.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass
from weakref import WeakKeyDictionary

import httpx2
from pydantic_ai import ModelRequest as OutgoingRequest
from pydantic_ai import ModelResponse, TextPart, ToolCallPart, ToolReturnPart, UserPromptPart
from pydantic_ai import ToolDefinition as OutgoingTool
from pydantic_ai.direct import model_request
from pydantic_ai.exceptions import ModelTimeoutError
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider
from pydantic_ai.settings import ModelSettings

from runs.boundary import live
from runs.boundary.models import answers
from runs.boundary.models.contracts import (
    AssistantMessage,
    Message,
    ModelAnswer,
    ModelRequest,
    ToolCall,
    ToolDefinition,
    ToolMessage,
)
from runs.boundary.models.errors import ModelError, provider_error, redact, request_id
from runs.boundary.models.exchange import CURRENT, AnswerTooLarge, Exchange, ExchangeTransport
from runs.boundary.models.history import BrokenHistory, SafeHistory, make_safe
from runs.boundary.models.keys import resolve_key
from runs.boundary.models.streams import AnthropicStream, OpenAiStream

OPENAI_URL = "https://api.openai.com/v1"
ANTHROPIC_URL = "https://api.anthropic.com"
CONNECT_SECONDS_MAX = 10.0  # a provider that cannot be reached is known quickly, however long an answer may take
CONNECTIONS_MAX = 50  # at once to one endpoint; further calls wait for their time limit
IDLE_CONNECTIONS_MAX = 10
CAUSES_MAX = 10  # links of an exception's chain that are looked at
ENDPOINTS_MAX = 32  # clients kept per event loop; the one unused for longest is closed for a new one


@dataclass(frozen=True)
class Endpoint:
    """Where one client talks to. The key is part of it, so that a rotated key gets a new client."""

    provider: str
    base_url: str | None
    key: str = field(repr=False)


@dataclass
class Client:
    """One connection pool, and what makes pydantic-ai's models from it."""

    http: httpx2.AsyncClient
    provider: OpenAIProvider | OpenAICompatibleProvider | AnthropicProvider
    calls: int = 0  # in flight; a client in use is never closed


_clients: WeakKeyDictionary[asyncio.AbstractEventLoop, OrderedDict[Endpoint, Client]] = WeakKeyDictionary()


async def ask(request: ModelRequest, provider: str, name: str) -> ModelAnswer:
    """One request to a real model. Raises ModelError."""
    try:
        history = make_safe(request.messages, request.tools)
    except BrokenHistory as error:
        raise ModelError("unsupported", f"the history cannot be sent: {error}") from None
    key = resolve_key(provider, request.base_url, request.api_key_ref)
    exchange = Exchange(mend=answers.mend_openai if provider == "openai" else answers.mend_anthropic)
    if (heard := live.listener()) is not None:
        exchange.stream, exchange.heard = OpenAiStream() if provider == "openai" else AnthropicStream(), heard
    started = time.monotonic()
    async with _client(Endpoint(provider, request.base_url, key)) as client:
        response = await _send(client, request, name, history, exchange, key)
    return _answer(request, provider, history, response, exchange, time.monotonic() - started)


async def aclose() -> None:
    """Close this event loop's clients. Call it when a worker shuts down."""
    for client in _clients.pop(asyncio.get_running_loop(), OrderedDict()).values():
        await client.http.aclose()


async def _send(
    client: Client, request: ModelRequest, name: str, history: SafeHistory, exchange: Exchange, key: str
) -> ModelResponse:
    """Send, and turn every way to fail into a ModelError.

    Errors are raised `from None`: the libraries' own hold the request, and with it the key and the prompt.
    """
    CURRENT.set(exchange)
    try:
        async with asyncio.timeout(request.timeout_seconds):
            response = await model_request(
                _model(client, name),
                _messages(history.messages, request.instructions),
                model_settings=_settings(request),
                model_request_parameters=ModelRequestParameters(function_tools=_tools(history.tools)),
                instrument=False,
            )
    except (TimeoutError, ModelTimeoutError):
        sentence = f"the model did not answer within {request.timeout_seconds:g} s"
        raise ModelError("timeout", sentence, may_have_acted=exchange.sent) from None
    except Exception as error:
        raise _failure(error, exchange, key) from None
    failed = answers.inner_error(exchange.document) if isinstance(exchange.document, dict) else None
    if failed or exchange.status != httpx2.codes.OK:
        raise provider_error(exchange.status, exchange.headers, failed or exchange.document, secret=key)
    return response


def _failure(error: Exception, exchange: Exchange, key: str) -> ModelError:
    """What went wrong, from the facts of the exchange; the library's error is only read when nothing came back."""
    if exchange.status:
        return provider_error(exchange.status, exchange.headers, exchange.document, secret=key)
    causes = _causes(error)
    reason = redact(str(causes[-1]) or type(causes[-1]).__name__, key)  # what the network said, not the libraries
    if any(isinstance(cause, AnswerTooLarge | httpx2.DecodingError) for cause in causes):
        return ModelError("bad_response", reason, may_have_acted=True)
    if exchange.requests:
        return ModelError("connection", f"no answer from the provider: {reason}", may_have_acted=exchange.sent)
    return ModelError("unsupported", f"the request cannot be made for this provider: {reason}")


def _causes(error: BaseException) -> list[BaseException]:
    causes = [error]
    while causes[-1].__cause__ is not None and len(causes) < CAUSES_MAX:
        causes.append(causes[-1].__cause__)
    return causes


@asynccontextmanager
async def _client(endpoint: Endpoint) -> AsyncIterator[Client]:
    clients = _clients.setdefault(asyncio.get_running_loop(), OrderedDict())
    client = clients.get(endpoint)
    if client is None:
        try:
            client = clients[endpoint] = _connect(endpoint)
        except (ValueError, OSError, httpx2.InvalidURL) as error:  # a proxy or certificate setting of the worker
            raise ModelError("unsupported", f"no client for this address: {redact(str(error), endpoint.key)}") from None
    clients.move_to_end(endpoint)
    client.calls += 1
    try:
        yield client
    finally:
        client.calls -= 1
        await _close_unused(clients)


async def _close_unused(clients: OrderedDict[Endpoint, Client]) -> None:
    unused = [endpoint for endpoint, client in clients.items() if not client.calls]
    for endpoint in unused[: max(0, len(clients) - ENDPOINTS_MAX)]:
        await clients.pop(endpoint).http.aclose()


def _connect(endpoint: Endpoint) -> Client:
    inner = httpx2.AsyncHTTPTransport(
        verify=_tls(),
        proxy=_proxy(endpoint.base_url or (OPENAI_URL if endpoint.provider == "openai" else ANTHROPIC_URL)),
        limits=httpx2.Limits(max_connections=CONNECTIONS_MAX, max_keepalive_connections=IDLE_CONNECTIONS_MAX),
    )
    # A redirect would carry the key to an address that nobody entered.
    http = httpx2.AsyncClient(transport=ExchangeTransport(inner), follow_redirects=False)
    return Client(http, _provider(endpoint, http))


def _provider(
    endpoint: Endpoint, http: httpx2.AsyncClient
) -> OpenAIProvider | OpenAICompatibleProvider | AnthropicProvider:
    if endpoint.provider == "anthropic":
        return AnthropicProvider(api_key=endpoint.key, base_url=endpoint.base_url or ANTHROPIC_URL, http_client=http)
    if endpoint.base_url is None:
        return OpenAIProvider(api_key=endpoint.key, base_url=OPENAI_URL, http_client=http)
    return OpenAICompatibleProvider(
        "openai-compatible", base_url=endpoint.base_url, api_key=endpoint.key, http_client=http
    )


@cache
def _tls() -> ssl.SSLContext:
    """One for all clients: reading the certificates takes a twentieth of a second."""
    return httpx2.create_ssl_context()


def _proxy(url: str) -> str | None:
    """The proxy that the worker's environment names for this address, as every HTTP client obeys it."""
    parts = urlsplit(url)
    return None if proxy_bypass(parts.hostname or "") else getproxies().get(parts.scheme)


def _model(client: Client, name: str) -> Model:
    if isinstance(client.provider, AnthropicProvider):
        return AnthropicModel(name, provider=client.provider)
    return OpenAIChatModel(name, provider=client.provider)


def _settings(request: ModelRequest) -> ModelSettings:
    limit = request.timeout_seconds
    settings = ModelSettings(
        max_retries=0,
        max_tokens=request.max_output_tokens,
        timeout=httpx2.Timeout(limit, connect=min(limit, CONNECT_SECONDS_MAX)),
        extra_headers={"Idempotency-Key": request.request_id, "X-Client-Request-Id": request.request_id},
    )
    if request.temperature is not None:
        settings["temperature"] = request.temperature
    return settings


def _tools(tools: tuple[ToolDefinition, ...]) -> list[OutgoingTool]:
    return [
        OutgoingTool(
            name=tool.name,
            description=tool.description,
            parameters_json_schema={"type": "object", "properties": {}} | tool.input_schema,
        )
        for tool in tools
    ]


def _messages(messages: tuple[Message, ...], instructions: str) -> list[ModelMessage]:
    sent: list[ModelMessage] = []
    for message in messages:
        if isinstance(message, AssistantMessage):
            sent.append(_assistant(message))
            continue
        part = _tool_result(message) if isinstance(message, ToolMessage) else UserPromptPart(message.text)
        if sent and isinstance(sent[-1], OutgoingRequest):
            sent[-1] = OutgoingRequest(parts=[*sent[-1].parts, part], instructions=instructions or None)
        else:
            sent.append(OutgoingRequest(parts=[part], instructions=instructions or None))
    return sent


def _assistant(message: AssistantMessage) -> ModelResponse:
    parts: list[Any] = [TextPart(message.text)] if message.text.strip() else []
    for call in message.calls:
        parts.append(ToolCallPart(call.name, json.loads(call.arguments), tool_call_id=call.id))
    return ModelResponse(parts=parts)


def _tool_result(message: ToolMessage) -> ToolReturnPart:
    return ToolReturnPart(
        tool_name=message.name,
        content=message.text,
        tool_call_id=message.call_id,
        outcome="failed" if message.is_error else "success",
    )


def _answer(
    request: ModelRequest,
    provider: str,
    history: SafeHistory,
    response: ModelResponse,
    exchange: Exchange,
    seconds: float,
) -> ModelAnswer:
    calls = [part for part in response.parts if isinstance(part, ToolCallPart)]
    if len(calls) > answers.CALLS_MAX:
        raise ModelError("bad_response", f"the model asked for {len(calls)} tool calls at once", may_have_acted=True)
    text = "".join(part.content for part in response.parts if isinstance(part, TextPart))
    return ModelAnswer(
        text=text or answers.read_refusal(exchange.document),
        calls=tuple(_call(part, history.tool_names) for part in calls),
        finish_reason=answers.read_finish_reason(exchange.document, has_calls=bool(calls)),
        usage=answers.read_usage(exchange.document),
        provider=provider if request.base_url is None else f"{provider}-compatible",
        model=response.model_name or "",
        response_id=response.provider_response_id or "",
        provider_request_id=request_id(exchange.headers),
        seconds=seconds,
    )


def _call(part: ToolCallPart, tool_names: dict[str, str]) -> ToolCall:
    return ToolCall(
        id=part.tool_call_id,
        name=tool_names.get(part.tool_name, part.tool_name),
        arguments=answers.argument_text(part.args),
    )

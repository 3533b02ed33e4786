"""The HTTP of one model call, below the client libraries: what left, what came back. Never a second request."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import httpx2

from runs.boundary.models.streams import Stream, event_of

ANSWER_BYTES_MAX = 32 * 1024 * 1024  # a model's answer is far smaller; more would only fill the worker's memory

EVENTS = "text/event-stream"

Mend = Callable[[dict[str, Any]], dict[str, Any]]


@dataclass
class Exchange:
    """The facts of one call. `sent` is true once the first byte of the request may have left."""

    mend: Mend
    sent: bool = False
    requests: int = 0
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    document: Any = None  # the body as JSON; None if it is something else
    stream: Stream | None = None  # asks for a streamed answer, which is put together here
    heard: Callable[[str], None] | None = None  # is told a streamed answer's text as it comes


CURRENT: ContextVar[Exchange] = ContextVar("model_exchange")


class SecondRequest(httpx2.TransportError):
    """A library tried to send the same call again on its own. Retrying is the workflow's decision."""


class AnswerTooLarge(httpx2.TransportError):
    """The answer was longer than ANSWER_BYTES_MAX."""


class ExchangeTransport(httpx2.AsyncBaseTransport):
    """Sends one request per call, reads the whole answer within its limit, and hands it on mended.

    Reading here and not above gives the caller the status, the headers and the body whatever the client library makes
    of them, and lets odd but usable answers of compatible servers pass.
    """

    def __init__(self, inner: httpx2.AsyncBaseTransport) -> None:
        self._inner = inner

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        exchange = CURRENT.get()
        if exchange.requests:
            raise SecondRequest("a second HTTP request within one model call", request=request)
        exchange.requests += 1

        async def trace(event: str, _: dict[str, Any]) -> None:
            if event.endswith("send_request_headers.started"):
                exchange.sent = True

        if exchange.stream is not None:
            request = _asking_for_a_stream(request)
        request.extensions["trace"] = trace
        response = await self._inner.handle_async_request(request)
        try:
            streamed = exchange.stream is not None and response.headers.get("content-type", "").startswith(EVENTS)
            body = await (_listen(response, request, exchange) if streamed else _read(response, request))
        finally:
            await response.aclose()
        exchange.status, exchange.headers = response.status_code, dict(response.headers.items())
        exchange.document = _document(body)
        if response.status_code == httpx2.codes.OK and isinstance(exchange.document, dict):
            body = _encode(exchange.mend(exchange.document))
        return httpx2.Response(
            response.status_code,
            headers=_plain_headers(response, streamed=streamed),
            content=body,
            extensions=response.extensions,
        )

    async def aclose(self) -> None:
        await self._inner.aclose()


async def _read(response: httpx2.Response, request: httpx2.Request) -> bytes:
    body = bytearray()
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) > ANSWER_BYTES_MAX:
            raise AnswerTooLarge(f"the answer is larger than {ANSWER_BYTES_MAX} bytes", request=request)
    return bytes(body)


def _asking_for_a_stream(request: httpx2.Request) -> httpx2.Request:
    """The same request with `stream` in its body. A server that does not know it answers as ever."""
    asked = json.loads(request.content) | {"stream": True}
    if "/chat/completions" in request.url.path:
        asked["stream_options"] = {"include_usage": True}
    headers = [(name, value) for name, value in request.headers.multi_items() if name.lower() != "content-length"]
    body = json.dumps(asked, ensure_ascii=False).encode()
    return httpx2.Request(request.method, request.url, headers=headers, content=body, extensions=request.extensions)


async def _listen(response: httpx2.Response, request: httpx2.Request, exchange: Exchange) -> bytes:
    """Read a stream to its end and give back the whole answer. Raises what a connection raises that breaks off."""
    assert exchange.stream is not None
    size, rest = 0, b""
    async for chunk in response.aiter_bytes():
        size += len(chunk)
        if size > ANSWER_BYTES_MAX:
            raise AnswerTooLarge(f"the answer is larger than {ANSWER_BYTES_MAX} bytes", request=request)
        *lines, rest = (rest + chunk).split(b"\n")
        _hear(lines, exchange)
    _hear([rest], exchange)
    document = exchange.stream.document()
    if document is None:
        raise httpx2.RemoteProtocolError("the streamed answer ended before its end", request=request)
    return _encode(document)


def _hear(lines: Iterable[bytes], exchange: Exchange) -> None:
    assert exchange.stream is not None
    for event in filter(None, map(event_of, lines)):
        text = exchange.stream.feed(event)
        if text and exchange.heard is not None:
            exchange.heard(text)


def _document(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _encode(document: dict[str, Any]) -> bytes:
    text = json.dumps(document, ensure_ascii=False)
    try:
        return text.encode()
    except UnicodeEncodeError:  # half a surrogate pair from a \\ud800 escape; no text column or wire takes it
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


def _plain_headers(response: httpx2.Response, *, streamed: bool) -> list[tuple[str, str]]:
    """Without what described the body as it was on the wire: it has been decoded, and put together if it came so."""
    dropped = {"content-encoding", "content-length", "transfer-encoding"} | ({"content-type"} if streamed else set())
    kept = [(name, value) for name, value in response.headers.multi_items() if name.lower() not in dropped]
    return [*kept, ("content-type", "application/json")] if streamed else kept

"""The HTTP of one model call, below the client libraries: what left, what came back. Never a second request."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import httpx2

ANSWER_BYTES_MAX = 32 * 1024 * 1024  # a model's answer is far smaller; more would only fill the worker's memory

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

        request.extensions["trace"] = trace
        response = await self._inner.handle_async_request(request)
        try:
            body = await _read(response, request)
        finally:
            await response.aclose()
        exchange.status, exchange.headers = response.status_code, dict(response.headers.items())
        exchange.document = _document(body)
        if response.status_code == httpx2.codes.OK and isinstance(exchange.document, dict):
            body = _encode(exchange.mend(exchange.document))
        return httpx2.Response(
            response.status_code, headers=_plain_headers(response), content=body, extensions=response.extensions
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


def _plain_headers(response: httpx2.Response) -> list[tuple[str, str]]:
    """Without what described the body as it was on the wire: it has been decoded."""
    dropped = {"content-encoding", "content-length", "transfer-encoding"}
    return [(name, value) for name, value in response.headers.multi_items() if name.lower() not in dropped]

"""What an HTTP exchange with an MCP server proves about the call in it: never left, refused, or unclear.

Sits below the library's transport, which turns a lost connection into a cancellation, an unreadable answer into "parse
error" (as if the request had been refused), and stops reading at a megabyte. Never sends a request twice.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping

import httpx2
from mcp_types import JSONRPCError, jsonrpc_message_adapter

from runs.boundary.mcp_config import Value, ValueMissing, resolve
from runs.boundary.mcp_wire import WIRE_BYTES_MAX, CallRecord, Line, LineSplitter, current_call, read_message

CONNECT_SECONDS = 10.0
WRITE_SECONDS = 30.0
ERROR_BODY_BYTES_MAX = 64 * 1024
EXCHANGE_FAILED = -32099  # our own code, from the range that the protocol leaves to implementations
# Errors of httpx2 after which provably nothing was sent: no connection existed.
NOT_CONNECTED = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.UnsupportedProtocol)


def http_client(headers: Mapping[str, Value]) -> tuple[httpx2.AsyncClient, McpHttpTransport]:
    """A client for one server, and its transport, which remembers the last failure.

    It reads no proxy or netrc settings, so no credential of the worker goes anywhere. Connections are not kept: the
    other side may have closed a kept one in the moment of sending, and then nobody knows whether a request without an
    answer was processed. There is no read time-out here: the call has its own.
    """
    timeout = httpx2.Timeout(None, connect=CONNECT_SECONDS, write=WRITE_SECONDS, pool=CONNECT_SECONDS)
    transport = McpHttpTransport(headers)
    return httpx2.AsyncClient(transport=transport, timeout=timeout, trust_env=False), transport


class McpHttpTransport(httpx2.AsyncBaseTransport):
    """Adds the declared headers to each request, and notes in the call's record what the exchange proves."""

    def __init__(self, headers: Mapping[str, Value]) -> None:
        limits = httpx2.Limits(max_connections=100, max_keepalive_connections=0)
        self._inner = httpx2.AsyncHTTPTransport(retries=0, limits=limits, trust_env=False)
        self._headers = dict(headers)
        self.last_failure = ""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        record = (current_call.get() if _carries_a_request(request) else None) or CallRecord()
        request.headers["accept-encoding"] = "identity"  # a small compressed answer could be of any size
        try:
            for name, value in self._headers.items():
                request.headers[name] = resolve(value)
        except ValueMissing as missing:
            record.never_left = self.last_failure = str(missing)
            return _error_response(request, str(missing))
        try:
            response = await self._inner.handle_async_request(request)
        except httpx2.TransportError as error:
            if request.method != "POST":
                raise
            return self._failed(request, record, error)
        return await self._noted(request, response, record) if request.method == "POST" else response

    async def aclose(self) -> None:
        await self._inner.aclose()

    def _failed(self, request: httpx2.Request, record: CallRecord, error: httpx2.TransportError) -> httpx2.Response:
        """An error of this one call. Raised, it would end the session with all its other calls."""
        said = f"{type(error).__name__}: {error}".removesuffix(": ")
        self.last_failure = said
        if isinstance(error, NOT_CONNECTED):
            record.never_left = said
        else:
            record.problem = f"the connection failed: {said}"
        return _error_response(request, said)

    async def _noted(self, request: httpx2.Request, response: httpx2.Response, record: CallRecord) -> httpx2.Response:
        content_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if response.status_code >= 400:
            return await self._noted_error(request, response, record)
        if response.status_code != 200 or response.headers.get("content-encoding", "identity") != "identity":
            record.problem = f"the server answered with HTTP status {response.status_code} and no readable result"
            return response
        if content_type == "text/event-stream":
            stream = ReadableEvents(response, record)
            return httpx2.Response(200, headers=response.headers, stream=stream, extensions=response.extensions)
        if content_type == "application/json":
            return await self._whole(request, response, record)
        record.problem = "the server answered with something that is neither JSON nor an event stream"
        return response

    async def _noted_error(
        self, request: httpx2.Request, response: httpx2.Response, record: CallRecord
    ) -> httpx2.Response:
        record.status = response.status_code
        self.last_failure = f"HTTP status {response.status_code}"
        try:
            line = await _read(response, ERROR_BODY_BYTES_MAX)
        except httpx2.TransportError:
            line = Line(b"", 0)
        try:
            record.spoken = isinstance(jsonrpc_message_adapter.validate_json(line.head, by_name=False), JSONRPCError)
        except ValueError:
            record.spoken = False
        return _response(request, response.status_code, response.headers, line.head)

    async def _whole(self, request: httpx2.Request, response: httpx2.Response, record: CallRecord) -> httpx2.Response:
        try:
            line = await _read(response, WIRE_BYTES_MAX)
        except httpx2.TransportError as error:
            return self._failed(request, record, error)
        reading = read_message(line)
        if reading is None:
            record.problem = "the server's answer is not readable JSON-RPC"
            return _error_response(request, record.problem)
        return _response(request, 200, response.headers, reading.data)


class ReadableEvents(httpx2.AsyncByteStream):
    """An event stream in which each event's data is one readable, bounded line; a broken connection is its end."""

    def __init__(self, response: httpx2.Response, record: CallRecord) -> None:
        self._response = response
        self._record = record
        self._data = LineSplitter()
        self._has_data = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        lines = LineSplitter()
        try:
            async for chunk in _raw(self._response):
                for line in lines.feed(chunk):
                    yield self._readable(line)
        except httpx2.TransportError as error:
            self._record.problem = f"the connection failed: {type(error).__name__}"

    async def aclose(self) -> None:
        await self._response.aclose()

    def _readable(self, line: Line) -> bytes:
        """The bytes to pass on for one line: data is held back until the blank line that ends its event."""
        field = line.head.rstrip(b"\r")
        if field.startswith(b"data:"):
            self._has_data = True
            self._data.feed(field[len(b"data:") :] + line.tail + b" ")
            return b""
        if field or not self._has_data:
            return field + b"\n"
        self._has_data = False
        return b"data: " + self._event(self._data.feed(b"\n")[0]) + b"\n\n"

    def _event(self, data: Line) -> bytes:
        reading = read_message(data)
        if reading is not None:
            return reading.data
        if text := data.head.strip():
            self._record.problem = "an event of the answer is not readable JSON-RPC"
            return text
        return b""


async def _read(response: httpx2.Response, bytes_max: int) -> Line:
    """The whole body as one line: a JSON text may stand on several, and line ends mean nothing in it."""
    lines = LineSplitter(bytes_max)
    try:
        async for chunk in _raw(response):
            lines.feed(chunk.replace(b"\n", b" "))
    finally:
        await response.aclose()
    return lines.feed(b"\n")[0]


def _carries_a_request(request: httpx2.Request) -> bool:
    """Not so: the cancelling of a call, an answer to the server, a GET; they prove nothing about the call."""
    if request.method != "POST":
        return False
    body = json.loads(request.content)
    return "id" in body and "method" in body


def _raw(response: httpx2.Response) -> httpx2.AsyncByteStream:
    assert isinstance(response.stream, httpx2.AsyncByteStream)
    return response.stream


def _response(request: httpx2.Request, status: int, headers: httpx2.Headers, body: bytes) -> httpx2.Response:
    kept = {name: value for name, value in headers.items() if name.lower() not in _OF_THE_BODY}
    return httpx2.Response(status, headers=kept, content=body, request=request)


_OF_THE_BODY = {"content-length", "transfer-encoding", "content-encoding"}


def _error_response(request: httpx2.Request, said: str) -> httpx2.Response:
    error = {"jsonrpc": "2.0", "id": None, "error": {"code": EXCHANGE_FAILED, "message": said}}
    body, headers = json.dumps(error).encode(), httpx2.Headers({"content-type": "application/json"})
    return _response(request, 502, headers, body)

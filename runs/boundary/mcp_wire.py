"""The bytes between the kernel and an MCP server, for both transports: bounded, made readable, and observed.

A server's answer must never be lost for its form alone, because the effect behind it has happened. So an answer that
the library could not parse is repaired or replaced by one that says so. Never sends anything by itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from weakref import WeakValueDictionary

import anyio
from mcp.client import Transport
from mcp.shared.message import SessionMessage
from mcp_types import (
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCRequest,
    JSONRPCResponse,
    jsonrpc_message_adapter,
)

WIRE_BYTES_MAX = 64 * 1024 * 1024  # of one message; a longer one is kept up to here and marked as cut
HEAD_BYTES = 64 * 1024  # of an unreadable answer that is shown
TAIL_BYTES = 4 * 1024  # where some servers write the id
UNREADABLE_KEY = "com.agentkernel/unreadable"  # in the `_meta` of an answer that stands for one we could not read
TRUNCATED_KEY = "com.agentkernel/truncated"
ALTERED = "the answer holds bytes that are no UTF-8, or halves of surrogate pairs; they are shown in another form"

Streams = tuple[Any, Any]  # the library's ReadStream and WriteStream of SessionMessage

_ESCAPE = re.compile(rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u[dD][89a-fA-F][0-9a-fA-F]{2}|.)")
_HALF_PAIR = re.compile(rb"\\u[dD][89a-fA-F]")
_ID = re.compile(rb'(?<!\\)"id"\s*:\s*("?)(\d{1,15})\1')
_RESULT = re.compile(rb'(?<!\\)"result"\s*:')
_IS_ERROR = re.compile(rb'(?<!\\)"isError"\s*:\s*true')


@dataclass(eq=False)
class CallRecord:
    """What is known of one request from its bytes; filled in by the streams and, over HTTP, by the transport."""

    before_send: Callable[[], Awaitable[None]] | None = None
    sent: bool = False  # the first byte may have left
    answer: dict[str, Any] | None = None  # the result as the server wrote it, whatever the library thinks of it
    error: ErrorData | None = None
    never_left: str = ""  # why the request provably did not leave
    problem: str = ""  # why the answer says nothing about the effect
    status: int = 0  # of an HTTP answer that is an error
    spoken: bool = False  # an HTTP error carried a JSON-RPC error, so the server itself said why


current_call: ContextVar[CallRecord | None] = ContextVar("current_call", default=None)


@dataclass(frozen=True)
class Line:
    """One line without its end; if it was too long, `tail` holds its last bytes and `size` tells how long it was."""

    head: bytes
    size: int
    tail: bytes = b""

    @property
    def whole(self) -> bool:
        return self.size == len(self.head)


class LineSplitter:
    """Cuts a stream of bytes into lines and never keeps more than `bytes_max` of one."""

    def __init__(self, bytes_max: int = WIRE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._reset()

    def feed(self, chunk: bytes) -> list[Line]:
        """The lines that this chunk completes."""
        *ended, rest = chunk.split(b"\n")
        lines = [self._end(part) for part in ended]
        self._keep(rest)
        return lines

    def _reset(self) -> None:
        self._head, self._tail, self._size = bytearray(), b"", 0

    def _keep(self, part: bytes) -> None:
        self._size += len(part)
        self._head += part[: self._bytes_max - len(self._head)]
        if self._size > self._bytes_max:
            self._tail = (self._tail + part)[-TAIL_BYTES:]

    def _end(self, part: bytes) -> Line:
        self._keep(part)
        line = Line(bytes(self._head), self._size, self._tail)
        self._reset()
        return line


@dataclass(frozen=True)
class Reading:
    """One message, and the bytes from which the library reads the same message."""

    message: JSONRPCMessage
    data: bytes


def read_message(line: Line) -> Reading | None:
    """Read one JSON-RPC message; None for a line that is none (servers do print to their output)."""
    why = f"the answer is too long; only its first {len(line.head)} bytes were read" if not line.whole else ""
    if line.whole:
        data = repair(line.head)
        try:
            message = jsonrpc_message_adapter.validate_json(data, by_name=False)
            return Reading(message, data) if data is line.head else _marked(message, data)
        except ValueError as error:
            why = f"the answer is not readable JSON-RPC: {_reason(error)}"
    return _stand_in(line, why)


def repair(data: bytes) -> bytes:
    """Make bytes that are no UTF-8 and halves of surrogate pairs visible, so that the rest can be read."""
    try:
        data.decode()
    except UnicodeDecodeError:
        data = data.decode("utf-8", "replace").encode()
    return _ESCAPE.sub(_visible, data) if _HALF_PAIR.search(data) else data


def _marked(message: JSONRPCMessage, data: bytes) -> Reading:
    """Say in an answer that it was altered."""
    if isinstance(message, JSONRPCResponse):
        meta = message.result.get("_meta")
        message.result["_meta"] = {**(meta if isinstance(meta, dict) else {}), UNREADABLE_KEY: ALTERED}
        data = json.dumps(message.model_dump(by_alias=True, exclude_unset=True)).encode()
    return Reading(message, data)


def _visible(escape: re.Match[bytes]) -> bytes:
    found = escape.group()
    return b"\\" + found if len(found) == len(rb"\ud800") and _HALF_PAIR.match(found) else found


def _stand_in(line: Line, why: str) -> Reading | None:
    """The answer to put in the place of one that cannot be read, if it plainly is the result of a request."""
    ends = line.head[:HEAD_BYTES], line.tail or line.head[-TAIL_BYTES:]
    found = _ID.search(ends[0][:TAIL_BYTES]) or _ID.search(ends[1])
    if found is None or not any(_RESULT.search(end) for end in ends):
        return None
    shown = ends[0].decode("utf-8", "replace")
    result = {
        "content": [{"type": "text", "text": shown}],
        "isError": any(_IS_ERROR.search(end) is not None for end in ends),
        "resultType": "complete",
        "_meta": {UNREADABLE_KEY: why, TRUNCATED_KEY: line.size > HEAD_BYTES},
    }
    data = json.dumps({"jsonrpc": "2.0", "id": int(found.group(2)), "result": result}).encode()
    return Reading(jsonrpc_message_adapter.validate_json(data, by_name=False), data)


def _reason(error: ValueError) -> str:
    """What the parser says, without the piece of the answer that it quotes."""
    lines = str(error).splitlines()
    return lines[1].split("[type=")[0].strip() if len(lines) > 1 else type(error).__name__


@asynccontextmanager
async def observed(inner: Transport, on_end: Callable[[], None]) -> AsyncGenerator[Streams]:
    """The streams of `inner`, with what passes noted in the record of the call that it belongs to.

    `on_end` is called as soon as the server's side of the connection ends.
    """
    open_calls: WeakValueDictionary[str, CallRecord] = WeakValueDictionary()
    async with inner as (read, write):
        yield _ObservedRead(read, open_calls, on_end), _ObservedWrite(write, open_calls)


class _Stream(AbstractAsyncContextManager[Any]):
    def __init__(self, inner: Any) -> None:
        self._inner = inner

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        result: bool | None = await self._inner.__aexit__(kind, error, trace)
        return result


class _ObservedWrite(_Stream):
    def __init__(self, inner: Any, open_calls: WeakValueDictionary[str, CallRecord]) -> None:
        super().__init__(inner)
        self._open_calls = open_calls

    async def send(self, item: SessionMessage) -> None:
        """Runs in the task of the caller, so the record is that of its call."""
        record = current_call.get()
        if record is not None and not record.sent and isinstance(item.message, JSONRPCRequest):
            self._open_calls[str(item.message.id)] = record
            if record.before_send is not None:
                await record.before_send()
            record.sent = True
        await self._inner.send(item)


class _ObservedRead(_Stream):
    def __init__(
        self, inner: Any, open_calls: WeakValueDictionary[str, CallRecord], on_end: Callable[[], None]
    ) -> None:
        super().__init__(inner)
        self._open_calls = open_calls
        self._on_end = on_end

    @property
    def last_context(self) -> Any:
        return getattr(self._inner, "last_context", None)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def receive(self) -> SessionMessage | Exception:
        try:
            item: SessionMessage | Exception = await self._inner.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError):
            self._on_end()
            raise
        if isinstance(item, SessionMessage):
            self._note(item.message)
        return item

    def _note(self, message: JSONRPCMessage) -> None:
        if not isinstance(message, JSONRPCResponse | JSONRPCError):
            return
        record = self._open_calls.pop(str(message.id), None)
        if record is None:
            return
        if isinstance(message, JSONRPCResponse):
            record.answer = message.result
        else:
            record.error = message.error

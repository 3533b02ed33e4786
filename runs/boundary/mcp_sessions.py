"""Sessions with MCP servers: one pool for each event loop, one task that owns each session, one task for each call.

The owner task alone enters and leaves the library's client, so that its cancel scopes never reach a caller: a caller
sees `CancelledError` only when it is really being cancelled. A call is sent once and never again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any

import anyio
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp_types import (
    CONNECTION_CLOSED,
    HEADER_MISMATCH,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    PARSE_ERROR,
    REQUEST_TIMEOUT,
    UNSUPPORTED_PROTOCOL_VERSION,
    URL_ELICITATION_REQUIRED,
    CallToolRequest,
    CallToolRequestParams,
    Implementation,
    PaginatedRequestParams,
    ToolListChangedNotification,
)
from pydantic import TypeAdapter, ValidationError

from kernel_project.primitives.canonical import canonical_bytes, sha256_hex
from runs.boundary import mcp_calls
from runs.boundary.contracts import NotSent, Refused
from runs.boundary.mcp_config import McpServerConfig, ValueMissing, secrets_of
from runs.boundary.mcp_http import McpHttpTransport, http_client
from runs.boundary.mcp_stdio import ServerProcess, stdio_streams
from runs.boundary.mcp_tools import digest_of_definition
from runs.boundary.mcp_wire import WIRE_BYTES_MAX, CallRecord, Streams, current_call, observed

SESSIONS_MAX = 32  # of one event loop; each stdio one is two processes
IDLE_SECONDS = 300.0  # after which an unused session is closed
CLOSE_SECONDS = 8.0  # for a session to end; a stdio server has 2 s to end by itself, then its guard has 2 s, twice
ANSWER_GRACE_SECONDS = 1.0  # beyond the library's own time-out, for a write that blocks
CANCEL_SECONDS = 2.0  # for the cancel notice to reach the server
PAGES_MAX = 50  # of one listing of tools
TEXT_CHARACTERS_MAX = 500  # of a server's own words in an error

# Codes with which a server refuses a request before it does anything.
REFUSING_CODES = {
    PARSE_ERROR,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    INVALID_PARAMS,
    HEADER_MISMATCH,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    UNSUPPORTED_PROTOCOL_VERSION,
    URL_ELICITATION_REQUIRED,
}
# HTTP answers of a server, or of a gateway before it, that did not process the request.
REFUSING_STATUSES = {400, 401, 403, 404, 405, 406, 411, 413, 414, 415, 421, 422, 426, 428, 429, 431}
SESSION_UNKNOWN = 404  # what a server answers to a session that it has forgotten, for instance by a restart

Progress = Callable[[], None]
BeforeSend = Callable[[], Awaitable[None]]

# The library's loggers quote pieces of answers and addresses; what an exchange came to is told by our own errors.
for _name in ("mcp", "client", "httpx2", "httpcore2"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)


class Unclear(Exception):
    """The request may have left, and nothing that came back tells whether it took effect."""


class SessionLost(Unclear):
    """The server, or the connection to it, went away after the request was sent."""


class CallTimedOut(Unclear):
    """No answer within the call's time. The server was asked to stop; whether it did is not known."""


@dataclass(frozen=True)
class Answer:
    """A server's answer as it wrote it. `note` says what the protocol library did not accept in it."""

    result: dict[str, Any]
    note: str = ""
    secrets: tuple[str, ...] = ()
    output_schema: dict[str, Any] | None = None


@dataclass
class _Known:
    """What the server said about one tool when the session started."""

    digest: str
    output_schema: dict[str, Any] | None


_ANYTHING: TypeAdapter[Any] = TypeAdapter(Any)


class McpSession:
    """One connection with one server. Its owner task lives as long as the connection."""

    def __init__(self, config: McpServerConfig, workspace: str) -> None:
        self.config = config
        self.key = _key(config, workspace)
        self.in_flight = 0
        self.retiring = False
        self.forgotten = False  # the server answered as if it did not know this session
        self.idle_since = asyncio.get_running_loop().time()
        self.server = ServerProcess()
        self.secrets = tuple(secrets_of(config))
        self.workspace = workspace
        self._closing = asyncio.Event()
        self._ready = asyncio.Event()
        self._tools: dict[str, _Known] = {}
        self._tools_stale = False
        self._client: Client | None = None
        self._http: McpHttpTransport | None = None
        # An empty context: the session outlives the call, the trace and the activity that happened to start it.
        self.owner = asyncio.create_task(self._own(), name=f"mcp session {config.name}", context=Context())
        self.owner.add_done_callback(_retrieved)

    @property
    def usable(self) -> bool:
        return not (self.retiring or self._closing.is_set() or self.owner.done())

    def end_if_retiring(self) -> None:
        if self.retiring and self.in_flight == 0:
            self._closing.set()

    def close(self) -> None:
        self._closing.set()

    async def started(self) -> None:
        """Wait until the session can be used. Raises NotSent if it cannot be."""
        ready = asyncio.ensure_future(self._ready.wait())
        try:
            await asyncio.wait(
                {ready, self.owner}, timeout=self.config.start_timeout_seconds, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            ready.cancel()
        if self._ready.is_set() and not self.owner.done():
            return
        why = f"no answer within {self.config.start_timeout_seconds:g} s" if not self.owner.done() else self._failure()
        self.server.end_now = True
        self.owner.cancel()
        raise NotSent(f"the MCP server {self.config.name!r} could not be started: {why}")

    async def check_definition(self, tool: str, expected_digest: str) -> None:
        """Raise NotSent if the server's definition of the tool is no longer the registered one."""
        if self._tools_stale:
            async with asyncio.timeout(self.config.start_timeout_seconds):
                await self._learn_tools()
        known = self._tools.get(tool)
        if known is not None and expected_digest and known.digest != expected_digest:
            raise NotSent(
                f"the server {self.config.name!r} has changed its definition of the tool {tool!r} since it was "
                "registered; register it again"
            )

    async def call(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        *,
        timeout_seconds: float,
        meta: Mapping[str, Any],
        before_send: BeforeSend | None,
        progress: Progress | None,
    ) -> Answer:
        """Send one call and wait for what becomes of it. See the module `effects.mcp` for the errors."""
        record = CallRecord(before_send=before_send)
        task = asyncio.create_task(self._send(record, tool, arguments, timeout_seconds, meta, progress))
        try:
            await asyncio.wait(
                {task, self.owner},
                timeout=timeout_seconds + ANSWER_GRACE_SECONDS,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            await _stopped(task)
        return self._outcome(task, record, tool)

    async def list_pages(self) -> list[dict[str, Any]]:
        """The tools as the server wrote them, page by page; at most PAGES_MAX pages."""
        assert self._client is not None
        found: list[dict[str, Any]] = []
        cursor: str | None = None
        for _ in range(PAGES_MAX):
            page = await self._page(cursor)
            listed = page.get("tools")
            found += [tool for tool in listed if isinstance(tool, dict)] if isinstance(listed, list) else []
            following = page.get("nextCursor")
            if not isinstance(following, str) or not following or following == cursor:
                break
            cursor = following
        return found

    def redacted(self, text: str) -> str:
        return redact(text, self.secrets)

    async def _own(self) -> None:
        client_info = Implementation(name="agent-kernel", version="1")
        mode = "legacy" if self.config.handshake == "initialize" else "auto"
        transport = observed(self._transport(), self._closing.set)
        async with Client(
            transport, mode=mode, client_info=client_info, message_handler=self._hear, cache=None
        ) as client:
            self._client = client
            await self._learn_tools()
            self._ready.set()
            await self._until_closed()

    @asynccontextmanager
    async def _transport(self) -> AsyncGenerator[Streams]:
        if self.config.transport == "stdio":
            async with stdio_streams(self.config, self.workspace, self.server) as streams:
                yield streams
            return
        client, self._http = http_client(self.config.headers)
        async with (
            client,
            streamable_http_client(
                self.config.url, http_client=client, max_sse_event_size=2 * WIRE_BYTES_MAX
            ) as streams,
        ):
            yield streams

    async def _until_closed(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._closing.is_set():
            with anyio.move_on_after(max(self.idle_since + IDLE_SECONDS - loop.time(), 1.0)):
                await self._closing.wait()
            if self.in_flight == 0 and loop.time() - self.idle_since >= IDLE_SECONDS:
                self._closing.set()

    async def _hear(self, message: object) -> None:
        if isinstance(message, ToolListChangedNotification):
            self._tools_stale = True

    async def _learn_tools(self) -> None:
        """Note what the tools are; over HTTP the library also needs the listing to write some headers."""
        self._tools_stale = False
        try:
            listed = await self.list_pages()
        except MCPError:
            return  # a server without a listing can still answer calls
        self._tools = {}
        for tool in listed:
            name, schema, output = tool.get("name"), tool.get("inputSchema"), tool.get("outputSchema")
            if isinstance(name, str) and isinstance(schema, dict):
                digest = _digest_or_nothing(self.config.name, name, tool.get("description"), schema)
                self._tools.setdefault(name, _Known(digest, output if isinstance(output, dict) else None))

    async def _page(self, cursor: str | None) -> dict[str, Any]:
        """One page, also if one tool on it is malformed: the library would then give none of them."""
        assert self._client is not None
        record = CallRecord()
        token = current_call.set(record)
        try:
            await self._client.session.list_tools(params=PaginatedRequestParams(cursor=cursor) if cursor else None)
        except ValidationError:
            if record.answer is None:
                raise
        finally:
            current_call.reset(token)
        return record.answer or {}

    async def _send(
        self,
        record: CallRecord,
        tool: str,
        arguments: Mapping[str, Any],
        timeout_seconds: float,
        meta: Mapping[str, Any],
        on_progress: Progress | None,
    ) -> None:
        """Not `session.call_tool`: after the effect it may list the tools, without a time limit, and raise."""
        assert self._client is not None
        current_call.set(record)

        async def heard(progress: float, total: float | None, message: str | None) -> None:  # noqa: ARG001
            if on_progress is not None:
                on_progress()

        params = CallToolRequestParams(name=tool, arguments=dict(arguments), _meta=dict(meta))
        await self._client.session.send_request(
            CallToolRequest(params=params),
            _ANYTHING,
            request_read_timeout_seconds=timeout_seconds,
            progress_callback=heard,
        )

    def _outcome(self, task: asyncio.Task[None], record: CallRecord, tool: str) -> Answer:
        error = task.exception() if task.done() and not task.cancelled() else None
        if record.answer is not None:
            known = self._tools.get(tool)
            return Answer(
                record.answer, _complaint(error), self.secrets, known.output_schema if known is not None else None
            )
        if not record.sent:
            raise NotSent(self._sentence("the request was not sent", error)) from error
        if record.never_left:
            raise NotSent(self._sentence(f"no connection: {record.never_left}", None))
        if record.error is None:
            raise self._no_answer(error)
        raise self._judged(record, record.error.code, record.error.message)

    def _no_answer(self, error: BaseException | None) -> Unclear:
        if self.owner.done() or (isinstance(error, MCPError) and error.code == CONNECTION_CLOSED):
            return SessionLost(self._sentence("the server went away before it answered", None))
        if error is None or (isinstance(error, MCPError) and error.code == REQUEST_TIMEOUT):
            return CallTimedOut(self._sentence("the server did not answer in time", None))
        return Unclear(self._sentence("the answer could not be read", error))

    def _judged(self, record: CallRecord, code: int, message: str) -> Exception:
        """What an error answer says about the effect."""
        said = self.redacted(message)[:TEXT_CHARACTERS_MAX]
        if record.problem:
            return Unclear(self._sentence(record.problem, None))
        self.forgotten = record.status == SESSION_UNKNOWN
        if record.status and not record.spoken:
            sentence = self._sentence(f"HTTP status {record.status}", None)
            return Refused(sentence) if record.status in REFUSING_STATUSES else Unclear(sentence)
        if code in REFUSING_CODES:
            return Refused(self._sentence(f"error {code}: {said}", None))
        if code == CONNECTION_CLOSED:
            return SessionLost(self._sentence(f"the connection ended before an answer: {said}", None))
        return Unclear(self._sentence(f"error {code}: {said}", None))

    def _sentence(self, what: str, error: BaseException | None) -> str:
        cause = f": {_words(error)}" if error is not None else ""
        return self.redacted(f"MCP server {self.config.name!r}: {what}{cause}")[: 2 * TEXT_CHARACTERS_MAX]

    def _failure(self) -> str:
        """Why the owner ended before the session was ready, in words that hold no secret."""
        error = None if self.owner.cancelled() else self.owner.exception()
        parts = [_words(error) if error is not None else "it ended", self.server.complaint()[-TEXT_CHARACTERS_MAX:]]
        if self._http is not None:
            parts.append(self._http.last_failure)
        return self.redacted("; ".join(part for part in parts if part))


@dataclass
class McpSessions:
    """The sessions of one event loop. A session that is lost or in doubt is never used again."""

    _sessions: dict[str, McpSession] = field(default_factory=dict)
    _ending: set[McpSession] = field(default_factory=set)
    _closed: bool = False

    async def call(
        self,
        config: McpServerConfig,
        tool: str,
        arguments: Mapping[str, Any],
        *,
        workspace: str = "",
        timeout_seconds: float,
        meta: Mapping[str, Any] | None = None,
        before_send: BeforeSend | None = None,
        progress: Progress | None = None,
        expected_digest: str = "",
        noted_as: str = "",
    ) -> Answer:
        """One call on a session of this server, started if need be.

        Raises NotSent, Refused, or Unclear (SessionLost, CallTimedOut); a cancellation of the caller cancels the call
        at the server and goes on. `noted_as` lets a probe of any process know whether the call may still run.
        """
        async with self._session(config, workspace) as session:
            try:
                await session.check_definition(tool, expected_digest)
                async with mcp_calls.noted(noted_as, session.server.lock):
                    return await session.call(
                        tool,
                        arguments,
                        timeout_seconds=min(timeout_seconds, config.call_timeout_seconds),
                        meta=meta or {},
                        before_send=before_send,
                        progress=progress,
                    )
            except TimeoutError as error:  # of the listing; a call's own is CallTimedOut
                self._retire(session)
                raise NotSent(f"the MCP server {config.name!r} does not list its tools in time") from error
            except Refused:
                if session.forgotten:
                    self._retire(session)
                raise
            except (NotSent, Unclear, asyncio.CancelledError):
                self._retire(session)
                raise

    async def list_tools(self, config: McpServerConfig, workspace: str = "") -> list[dict[str, Any]]:
        """The tools of this server as it wrote them. Raises NotSent if it cannot be reached or does not tell."""
        async with self._session(config, workspace) as session:
            try:
                async with asyncio.timeout(config.start_timeout_seconds):
                    return await session.list_pages()
            except (MCPError, ValidationError, TimeoutError) as error:
                self._retire(session)
                raise NotSent(session.redacted(f"{config.name!r} does not list its tools: {_words(error)}")) from error

    async def close(self) -> None:
        """End all sessions; when this returns, no server process of this pool remains. The pool takes no more calls."""
        self._closed = True
        sessions = {*self._sessions.values(), *self._ending}
        for session in sessions:
            session.close()
        owners = {session.owner for session in sessions}
        if owners:
            _, late = await asyncio.wait(owners, timeout=CLOSE_SECONDS)
            for owner in late:
                owner.cancel()
            if late:
                await asyncio.wait(late, timeout=CLOSE_SECONDS)

    @asynccontextmanager
    async def _session(self, config: McpServerConfig, workspace: str) -> AsyncGenerator[McpSession]:
        session = self._find_or_start(config, workspace)
        session.in_flight += 1
        try:
            await session.started()
            yield session
        finally:
            session.in_flight -= 1
            session.idle_since = asyncio.get_running_loop().time()
            session.end_if_retiring()

    def _find_or_start(self, config: McpServerConfig, workspace: str) -> McpSession:
        if self._closed:
            raise NotSent("the worker is shutting down")
        found = self._sessions.get(_key(config, workspace))
        if found is not None and found.usable:
            return found
        if found is not None:
            self._let_end(found)
        self._make_room()
        session = McpSession(config, workspace)
        self._sessions[session.key] = session
        session.owner.add_done_callback(lambda _: self._forget(session))
        return session

    def _make_room(self) -> None:
        if len(self._sessions) + len(self._ending) < SESSIONS_MAX:
            return
        idle = [session for session in self._sessions.values() if session.in_flight == 0]
        if not idle:
            raise NotSent(f"all {SESSIONS_MAX} MCP sessions of this worker are busy")
        oldest = min(idle, key=lambda session: session.idle_since)
        oldest.close()
        self._let_end(oldest)

    def _retire(self, session: McpSession) -> None:
        session.retiring = True  # it ends when the last call in flight has ended
        self._let_end(session)

    def _let_end(self, session: McpSession) -> None:
        if self._sessions.get(session.key) is session:
            del self._sessions[session.key]
        if not session.owner.done():
            self._ending.add(session)

    def _forget(self, session: McpSession) -> None:
        self._ending.discard(session)
        if self._sessions.get(session.key) is session:
            del self._sessions[session.key]


def redact(text: str, secrets: tuple[str, ...]) -> str:
    """The text without any of the server's secrets, should it have repeated one."""
    for secret in secrets:
        text = text.replace(secret, "[secret]")
    return text


def _key(config: McpServerConfig, workspace: str) -> str:
    where = workspace if config.uses_workspace else ""
    return sha256_hex(canonical_bytes({"server": config.model_dump(mode="json"), "workspace": where}))


async def _stopped(task: asyncio.Task[None]) -> None:
    """See the call's task to its end: a cancelled one first tells the server to stop."""
    if not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=CANCEL_SECONDS)
        task.add_done_callback(_retrieved)


def _retrieved(task: asyncio.Task[None]) -> None:
    """Look at the error, so that asyncio does not report it as never looked at; sessions tell of it themselves."""
    if not task.cancelled():
        task.exception()


def _digest_or_nothing(server: str, name: str, description: object, schema: dict[str, Any]) -> str:
    try:
        return digest_of_definition(server, name, description if isinstance(description, str) else "", schema)
    except ValueError:
        return ""


def _complaint(error: BaseException | None) -> str:
    """What the library objects to in an answer that came."""
    if isinstance(error, ValidationError):
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        return f"the answer is not as the protocol wants it: {where}: {first['msg']}"[:TEXT_CHARACTERS_MAX]
    return ""


def _words(error: BaseException) -> str:
    """The innermost causes of a group, each as type and message."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(_words(inner) for inner in error.exceptions[:3])
    if isinstance(error, ValueMissing | NotSent):
        return str(error)
    return f"{type(error).__name__}: {error}".removesuffix(": ")[:TEXT_CHARACTERS_MAX]

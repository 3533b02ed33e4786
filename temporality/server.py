"""The event store's HTTP server: a bare ASGI application, because ingest is a hot path. Decides nothing by itself."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, NamedTuple

from pydantic_core import to_json

from kernel_project.primitives.errors import Forbidden, Invalid, KernelError, NotFound, Unavailable
from temporality import reading
from temporality.contracts import EVENTS_PATH, HEALTH_PATH, KNOWLEDGE_PATH, RUN_PROGRESS_PATH, RUN_STATE_PATH
from temporality.envelope import Incoming, Undecodable, decode_batch, read_event
from temporality.inbox import Inbox, Verdict
from temporality.projection import reading as projected
from temporality.projection.loop import ProjectorThread
from temporality.query import BadQuery, Query
from temporality.store import RETRY_AFTER_SECONDS, Store
from temporality.tokens import Bearers, Grant, Unauthorized

logger = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class TooLarge(Invalid):
    """The body is over the limit (HTTP 413)."""


class WrongMethod(Invalid):
    """The path exists, the method does not (HTTP 405)."""


class Gone(Exception):
    """The client went away while it was sending."""


class Answer(NamedTuple):
    """One HTTP answer; `body` is JSON text."""

    status: int
    body: str


STATUSES: list[tuple[type[KernelError], int]] = [
    (Undecodable, 400),
    (BadQuery, 400),
    (TooLarge, 413),
    (WrongMethod, 405),
    (Unauthorized, 401),
    (Forbidden, 403),
    (NotFound, 404),
    (Unavailable, 503),
    (Invalid, 422),
]  # the first that fits


class Application:
    """One event store over one database. `events_max` and `body_bytes_max` bound a batch; `projects` says whether this
    process keeps the projection up to date, too.
    """

    def __init__(
        self, database_url: str, *, connections_max: int, events_max: int, body_bytes_max: int, projects: bool = True
    ) -> None:
        self.store = Store(database_url, connections_max)
        self.projector = ProjectorThread(database_url) if projects else None
        self.inbox = Inbox(self.store, self.projector.wake if self.projector else lambda: None)
        self.bearers = Bearers(self.store)
        self.events_max = events_max
        self.body_bytes_max = body_bytes_max

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            try:
                answer = await self._answer(scope, receive)
            except Gone:
                return
            await _send(send, answer, scope["method"])
        else:
            await receive()
            await send({"type": "websocket.close"})

    async def start(self) -> None:
        await self.store.open()
        self.inbox.start()
        if self.projector:
            self.projector.start()

    async def stop(self) -> None:
        await self.inbox.stop()
        if self.projector:
            await asyncio.to_thread(self.projector.stop)
        await self.store.close()

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await self.start()
                await send({"type": "lifespan.startup.complete"})
            else:
                await self.stop()
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _answer(self, scope: Scope, receive: Receive) -> Answer:
        try:
            return await self._route(scope, receive)
        except KernelError as error:
            return Answer(_status(error), _error(error.message))
        except Gone:
            raise
        except Exception:
            logger.exception("a request to %s failed", scope["path"])
            return Answer(500, _error("the event store failed; the log says why"))

    async def _route(self, scope: Scope, receive: Receive) -> Answer:
        path, method = scope["path"], scope["method"]
        if path == HEALTH_PATH:
            _check_method(method, "GET", "HEAD")
            return await self._health()
        if path == EVENTS_PATH and method == "POST":
            return await self._ingest(scope, receive)
        read = READERS.get(path)
        if read is None:
            raise NotFound("there is no such path")
        _check_method(method, "GET", "HEAD")
        grant = await self._grant(scope)
        return Answer(200, await read(self.store, grant, Query(scope["query_string"])))

    async def _health(self) -> Answer:
        async with self.store.read() as connection:
            await connection.execute("SELECT 1")
        return Answer(200, '{"status":"ok"}')

    async def _grant(self, scope: Scope) -> Grant:
        for name, value in scope["headers"]:
            if name == b"authorization":
                return await self.bearers.grant(value.decode("latin-1"))
        raise Unauthorized("a valid bearer token is required")

    async def _ingest(self, scope: Scope, receive: Receive) -> Answer:
        grant = await self._grant(scope)
        batch = decode_batch(await self._body(scope, receive))
        if not 1 <= len(batch) <= self.events_max:
            raise Invalid(f"a batch has 1 to {self.events_max} events, not {len(batch)}")
        events = [_event(number, decoded) for number, decoded in enumerate(batch)]
        grant.check_write(events)
        return _ingested(events, await self.inbox.add(events))

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        for name, value in scope["headers"]:
            if name == b"content-length" and int(value) > self.body_bytes_max:
                raise TooLarge(f"the body is larger than {self.body_bytes_max} bytes")
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Gone
            body += message.get("body", b"")
            if len(body) > self.body_bytes_max:
                raise TooLarge(f"the body is larger than {self.body_bytes_max} bytes")
            if not message.get("more_body"):
                return bytes(body)


Reader = Callable[[Store, Grant, Query], Awaitable[str]]
READERS: dict[str, Reader] = {
    EVENTS_PATH: reading.events,
    RUN_STATE_PATH: projected.run_state,
    RUN_PROGRESS_PATH: projected.progress,
    KNOWLEDGE_PATH: projected.knowledge,
    "/v1/observations/runs/timeline": projected.timeline,
    "/v1/observations/operations": projected.operations,
    "/v1/observations/approvals": projected.approvals,
    "/v1/observations/gaps": projected.gaps,
    "/v1/observations/conflicts": projected.conflicts,
    "/v1/observations/quarantine": projected.quarantine,
    "/v1/observations/unresolved": projected.unresolved,
    "/v1/observations/unresolvable": projected.unresolvable,
    "/v1/observations/lag": projected.lag,
}


def _event(number: int, decoded: Any) -> Incoming:
    try:
        return read_event(decoded)
    except Invalid as error:
        raise Invalid(f"events[{number}]: {error.message}") from None


def _ingested(events: list[Incoming], verdicts: list[Verdict]) -> Answer:
    words = [verdict.status for verdict in verdicts]
    results = [
        {"source_id": event.source_id, "event_id": event.event_id, "status": verdict.status, "code": verdict.code}
        | ({"error": verdict.error} if verdict.error else {})
        for event, verdict in zip(events, verdicts, strict=True)
    ]
    answer = {"accepted": words.count("accepted"), "repeated": words.count("repeated"), "results": results}
    return Answer(207 if "rejected" in words else 200, to_json(answer).decode())


def _check_method(method: str, *allowed: str) -> None:
    if method not in allowed:
        raise WrongMethod(f"{method} is not possible here")


def _status(error: KernelError) -> int:
    return next((status for kind, status in STATUSES if isinstance(error, kind)), 400)


def _error(message: str) -> str:
    return json.dumps({"error": message})


async def _send(send: Send, answer: Answer, method: str) -> None:
    body = answer.body.encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if answer.status == 503:
        headers.append((b"retry-after", str(RETRY_AFTER_SECONDS).encode()))
    if answer.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if method == "HEAD" else body})

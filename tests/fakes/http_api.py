"""A real HTTP server that keeps a ledger and misbehaves as told: what an HTTP tool may meet outside."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Seen:
    """One request as it arrived."""

    method: str
    path: str
    headers: dict[str, str]
    body: str


@dataclass
class Api:
    """The server's side: what it saw, what it did, and what it does next.

    `plan` is called for each request and answers through the handler; the default writes an effect for each request
    that is no GET, once for each key if `keyed`, and lists them for a GET.
    """

    keyed: bool = False
    plan: Callable[[Handler], None] | None = None
    seen: list[Seen] = field(default_factory=list)
    effects: list[str] = field(default_factory=list)
    released: threading.Event = field(default_factory=threading.Event)
    port: int = 0
    scheme: str = "http"

    def url(self, path: str = "", host: str = "127.0.0.1") -> str:
        return f"{self.scheme}://{host}:{self.port}{path}"

    def act(self, seen: Seen) -> None:
        """The effect: one line for each call, or for each key."""
        key = seen.headers.get("idempotency-key", "")
        if not (self.keyed and key in self.effects):
            self.effects.append(key)


class Handler(BaseHTTPRequestHandler):
    """Reads one request and lets the plan answer it."""

    protocol_version = "HTTP/1.1"
    server: Server

    def handle_one(self) -> None:
        api = self.server.api
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.request_seen = Seen(self.command, self.path, headers, body.decode(errors="replace"))
        api.seen.append(self.request_seen)
        (api.plan or usual)(self)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = handle_one  # noqa: N815  the library's names

    @property
    def api(self) -> Api:
        return self.server.api

    def answer(self, status: int, body: bytes | dict[str, Any] = b"", **headers: str) -> None:
        data = json.dumps(body).encode() if isinstance(body, dict) else body
        self.send_response(status)
        given = {"content-type": "application/json", "content-length": str(len(data))}
        for name, value in (given | {name.replace("_", "-"): text for name, text in headers.items()}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)
        self.close_connection = True

    def act(self) -> None:
        self.api.act(self.request_seen)

    def break_off(self) -> None:
        """Cut the connection without another byte."""
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def hold(self) -> None:
        """Say nothing until the server is told to let go."""
        self.api.released.wait(30)
        self.break_off()

    def log_request(self, *_: Any) -> None:
        """Say nothing."""

    def log_error(self, format: str, *args: Any) -> None:  # noqa: A002  the library's name
        """Say nothing."""


class Server(ThreadingHTTPServer):
    daemon_threads = True
    api: Api

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is what these tests are about."""


def usual(handler: Handler) -> None:
    """A well-behaved API."""
    api = handler.api
    if handler.command == "GET":
        handler.answer(200, {"refunds": api.effects})
        return
    handler.act()
    handler.answer(201, {"id": len(api.effects)})


@contextmanager
def http_api(api: Api | None = None, *, tls: tuple[Path, Path] | None = None) -> Iterator[Api]:
    """The server on a free port of the loopback; with TLS if a certificate and its key are given."""
    api = api or Api()
    server = Server(("127.0.0.1", 0), Handler)
    server.api = api
    if tls is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*tls)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        api.scheme = "https"
    api.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield api
    finally:
        api.released.set()
        server.shutdown()
        server.server_close()
        thread.join(5)

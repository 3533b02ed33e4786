"""A provider of models on loopback that answers too late, for row F1.

It speaks the form of OpenAI's chat completions as far as the row needs it, and keeps no connection waiting for long.
"""

from __future__ import annotations

import json
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

LOOPBACK = "127.0.0.1"
LATE_SECONDS = 10.0  # longer than the row's agent waits
BODY_BYTES_MAX = 1024 * 1024
ANSWER = {
    "id": "chatcmpl-drill",
    "object": "chat.completion",
    "created": 1_700_000_000,
    "model": "drill",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "at last"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
}


class SlowProvider:
    """Answers the first `late` requests after LATE_SECONDS, and those after them at once."""

    def __init__(self, late: int) -> None:
        self._late, self._asked, self._lock = late, 0, threading.Lock()
        self._stopping = threading.Event()
        self._server = _Server(self)
        self._thread = threading.Thread(target=self._server.serve_forever, name="provider", daemon=True)

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self._server.server_address[1]}/v1"

    @property
    def asked(self) -> int:
        """How many requests have come."""
        with self._lock:
            return self._asked

    def wait_as_told(self) -> None:
        """Hold one request back, if it is one of the late ones and nobody stops us."""
        with self._lock:
            self._asked += 1
            is_late = self._asked <= self._late
        if is_late:
            self._stopping.wait(LATE_SECONDS)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, provider: SlowProvider) -> None:
        super().__init__((LOOPBACK, 0), _Handler)
        self.provider = provider

    def handle_error(self, *_: Any) -> None:
        """A client that does not wait for a late answer is the point."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_POST(self) -> None:
        self.rfile.read(min(int(self.headers.get("Content-Length") or 0), BODY_BYTES_MAX))
        self.server.provider.wait_as_told()
        data = json.dumps(ANSWER).encode()
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Say nothing: what counts is what the kernel tells."""

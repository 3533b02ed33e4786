"""A webhook's other side: keeps what it was sent, answers what it is told to, and may talk very slowly."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(frozen=True)
class Received:
    path: str
    headers: dict[str, str]
    body: bytes


class WebhookServer:
    """Requests in order of arrival. `statuses` are used up one by one, then it is 204."""

    def __init__(self) -> None:
        self.received: list[Received] = []
        self.statuses: list[int] = []
        self.trickle_seconds = 0.0
        self.url = ""


@contextmanager
def webhook_server() -> Iterator[WebhookServer]:
    server = WebhookServer()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            server.received.append(Received(self.path, headers, body))
            end = time.monotonic() + server.trickle_seconds
            while time.monotonic() < end:
                try:
                    self.wfile.write(b"H")
                except OSError:
                    return
                time.sleep(0.1)
            self.send_response(server.statuses.pop(0) if server.statuses else 204)
            self.send_header("Location", "/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Quietly."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        listening.daemon_threads = True
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        server.url = f"http://127.0.0.1:{listening.server_address[1]}/hook"
        yield server
        listening.shutdown()

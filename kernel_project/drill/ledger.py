"""The other side of the drill's tools: a process of its own that books each effect as one fsynced line of a file.

`python -m kernel_project.drill.ledger FILE` listens on loopback and prints its address. Knows nothing of the kernel.

    POST /opaque, /keyed    book one effect, {"text": …}; `keyed` books a repeated Idempotency-Key once, `opaque` does
                            not care for keys
    GET  /found?key=K       how often an effect with this key was booked
    POST /faults            {"text": …, "fault": kill|close|slow}: the next booking of this text is committed, and then
                            its client (header Client-Pid) is killed, or gets no answer, or gets it late
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

LOOPBACK = "127.0.0.1"
BODY_BYTES_MAX = 64 * 1024
SLOW_SECONDS = 15.0
WAITING_MAX = 256  # connections that the listening socket holds back for us
FAULTS = ("kill", "close", "slow")


class Ledger:
    """The lines, and what is to go wrong with the next booking of a text."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a")
        self._lock = threading.Lock()
        self._keys: dict[str, int] = {}
        self.faults: dict[str, str] = {}

    def book(self, mode: str, text: str, key: str) -> int:
        """One line on disk, unless a keyed effect with this key is there already; returns how often it is there."""
        with self._lock:
            if mode != "keyed" or not key or key not in self._keys:
                self._file.write(json.dumps({"mode": mode, "text": text, "key": key}) + "\n")
                self._file.flush()
                os.fsync(self._file.fileno())
                self._keys[key] = self._keys.get(key, 0) + 1
            return self._keys[key]

    def found(self, key: str) -> int:
        with self._lock:
            return self._keys.get(key, 0)


class Server(ThreadingHTTPServer):
    """One ledger over HTTP."""

    daemon_threads = True
    request_queue_size = WAITING_MAX

    def __init__(self, ledger: Ledger) -> None:
        super().__init__((LOOPBACK, 0), Handler)
        self.ledger = ledger


class Handler(BaseHTTPRequestHandler):
    """One request; unknown ones are 404."""

    server: Server

    def do_GET(self) -> None:
        asked = urlsplit(self.path)
        key = parse_qs(asked.query).get("key", [""])[0]
        self._answer({"count": self.server.ledger.found(key)} if asked.path == "/found" else None)

    def do_POST(self) -> None:
        length = min(int(self.headers.get("Content-Length") or 0), BODY_BYTES_MAX)
        body = json.loads(self.rfile.read(length))
        match self.path:
            case "/opaque" | "/keyed":
                self._book(self.path.removeprefix("/"), str(body["text"]))
            case "/faults" if body["fault"] in FAULTS:
                self.server.ledger.faults[str(body["text"])] = body["fault"]
                self._answer({})
            case _:
                self._answer(None)

    def _book(self, mode: str, text: str) -> None:
        count = self.server.ledger.book(mode, text, self.headers.get("Idempotency-Key") or "")
        match self.server.ledger.faults.pop(text, ""):
            case "kill":
                os.kill(int(self.headers["Client-Pid"]), signal.SIGKILL)
            case "close":
                self.close_connection = True
            case "slow":
                time.sleep(SLOW_SECONDS)
                self._answer({"booked": text, "count": count})
            case _:
                self._answer({"booked": text, "count": count})

    def _answer(self, body: dict[str, Any] | None) -> None:
        data = json.dumps(body).encode()
        self.send_response(HTTPStatus.NOT_FOUND if body is None else HTTPStatus.OK)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Say nothing: the file is the record."""


def main() -> None:
    server = Server(Ledger(Path(sys.argv[1])))
    sys.stdout.write(f"http://{LOOPBACK}:{server.server_address[1]}\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    main()

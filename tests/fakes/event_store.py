"""A server that speaks the wire contract and misbehaves on command: what the publisher must survive."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Event = dict[str, Any]
Answer = tuple[int, dict[str, str], bytes]
CONFLICT = "source event ID already exists with different content"


class FakeEventStore:
    """Keeps what it took, in order of arrival. `answer` may be replaced by a function of the batch."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.kept: dict[str, Event] = {}
        self.order: list[tuple[str, int]] = []
        self.requests = 0
        self.answer: Callable[[list[Event]], Answer] = self.take
        self.judge: Callable[[Event], dict[str, str] | None] = lambda _event: None
        self.url = ""

    def take(self, events: list[Event]) -> Answer:
        """As the contract says; `judge` may give single events another result, or {} to leave them unnamed."""
        results = []
        for event in events:
            verdict = self.judge(event)
            if verdict is None:
                verdict = {"status": "repeated" if event["event_id"] in self.kept else "accepted"}
                if event["event_id"] not in self.kept:
                    self.kept[event["event_id"]] = event
                    self.order.append((event["context"]["run"], event["data"]["sequence"]))
            if verdict:
                results.append({"source_id": event["source"]["id"], "event_id": event["event_id"], **verdict})
        rejected = any(result["status"] == "rejected" for result in results)
        counts = {name: sum(r["status"] == name for r in results) for name in ("accepted", "repeated")}
        return 207 if rejected else 200, {}, json.dumps({**counts, "results": results}).encode()

    def sequences(self, run: str) -> list[int]:
        return [sequence for name, sequence in self.order if name == run]


def failing(status: int, **headers: str) -> Callable[[list[Event]], Answer]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda _events: (status, named, json.dumps({"error": f"told to answer {status}"}).encode())


@contextmanager
def fake_event_store() -> Iterator[FakeEventStore]:
    store = FakeEventStore()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            store.requests += 1
            store.bodies.append(body)
            status, headers, content = store.answer(json.loads(body)["events"])
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    store.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield store
    finally:
        server.shutdown()
        server.server_close()

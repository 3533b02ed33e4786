"""A server that speaks the wire contract and misbehaves on command: what the publisher must survive."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Event = dict[str, Any]
Answer = tuple[int, dict[str, str], bytes]
CONFLICT = "source event ID already exists with different content"
STORAGE = "storage error"


class Cut(Exception):
    """Raised by an answer: the connection ends without one."""


class FakeEventStore:
    """Keeps what it took, in order of arrival; knows `accepted`, `repeated` and `rejected` only, without our `code`.

    `answer` may be replaced by a function of the batch, `judge` by a function of one event. `forgets_answers` takes a
    batch and cuts the connection before it says so. `pause_seconds` is waited before each answer, `piece_seconds`
    between the bytes of one.
    """

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.kept: dict[str, Event] = {}
        self.texts: dict[str, str] = {}
        self.order: list[tuple[str, int]] = []
        self.changed: list[str] = []  # event ids that came again with other content
        self.requests = 0
        self.at_once = 0
        self.at_once_max = 0
        self.runs_at_once: Counter[str] = Counter()
        self.runs_overlapped: set[str] = set()
        self.answer: Callable[[list[Event]], Answer] = self.take
        self.judge: Callable[[Event], dict[str, str] | None] = lambda _event: None
        self.forgets_answers = 0  # how many more times
        self.pause_seconds = 0.0
        self.piece_seconds = 0.0
        self.body_bytes_max = 1024 * 1024
        self.events_max = 100
        self.url = ""
        self.lock = threading.Lock()

    def take(self, events: list[Event]) -> Answer:
        """As the contract says; `judge` may give single events another result, or {} to leave them unnamed."""
        if len(events) > self.events_max:
            return _problem(422, f"at most {self.events_max} events")
        results = []
        with self.lock:
            for event in events:
                verdict = self.judge(event)
                if verdict is None:
                    verdict = self._keep(event)
                if verdict:
                    results.append({"source_id": event["source"]["id"], "event_id": event["event_id"], **verdict})
        rejected = any(result["status"] == "rejected" for result in results)
        counts = {name: sum(r["status"] == name for r in results) for name in ("accepted", "repeated")}
        return 207 if rejected else 200, {}, json.dumps({**counts, "results": results}).encode()

    def _keep(self, event: Event) -> dict[str, str]:
        text = json.dumps(event, sort_keys=True)
        if (known := self.texts.get(event["event_id"])) is not None:
            if known == text:
                return {"status": "repeated"}
            self.changed.append(event["event_id"])
            return {"status": "rejected", "error": CONFLICT}
        self.kept[event["event_id"]], self.texts[event["event_id"]] = event, text
        self.order.append((event["context"]["run"], event["data"]["sequence"]))
        return {"status": "accepted"}

    def sequences(self, run: str) -> list[int]:
        return [sequence for name, sequence in self.order if name == run]

    def order_breaks(self) -> list[str]:
        """Runs of which something arrived before what precedes it."""
        runs = {run for run, _ in self.order}
        return [run for run in runs if self.sequences(run) != sorted(self.sequences(run))]

    @contextmanager
    def serving(self, events: list[Event]) -> Iterator[None]:
        """Notice how many requests there are at once, and whether two carry the same run."""
        runs = {str(event.get("context", {}).get("run")) for event in events}
        with self.lock:
            self.at_once += 1
            self.at_once_max = max(self.at_once, self.at_once_max)
            self.runs_at_once.update(runs)
            self.runs_overlapped |= {run for run in runs if self.runs_at_once[run] > 1}
        try:
            yield
        finally:
            with self.lock:
                self.at_once -= 1
                self.runs_at_once.subtract(runs)


def failing(status: int, **headers: str) -> Callable[[list[Event]], Answer]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda _events: (status, named, json.dumps({"error": f"told to answer {status}"}).encode())


def saying(status: int, body: bytes) -> Callable[[list[Event]], Answer]:
    return lambda _events: (status, {}, body)


def cutting(_events: list[Event]) -> Answer:
    raise Cut


def _problem(status: int, error: str) -> Answer:
    return status, {}, json.dumps({"error": error}).encode()


@contextmanager
def fake_event_store(port: int = 0) -> Iterator[FakeEventStore]:
    store = FakeEventStore()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            with store.lock:
                store.requests += 1
                store.bodies.append(body)
            if len(body) > store.body_bytes_max:
                return self._reply(*_problem(413, "the body is too large"))
            events = json.loads(body)["events"]
            with store.serving(events):
                try:
                    answer = store.answer(events)
                except Cut:
                    return self._cut()
                if store.forgets_answers > 0:
                    store.forgets_answers -= 1
                    return self._cut()
                time.sleep(store.pause_seconds)
                return self._reply(*answer)

        def _reply(self, status: int, headers: dict[str, str], content: bytes) -> None:
            try:
                self.send_response(status)
                for name, value in {"Content-Length": str(len(content)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                for at in range(0, len(content), 1 if store.piece_seconds else max(len(content), 1)):
                    self.wfile.write(content[at : at + 1] if store.piece_seconds else content)
                    time.sleep(store.piece_seconds)
            except OSError:  # the client gave up
                self.close_connection = True

        def _cut(self) -> None:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # a client that gave up is no news
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    store.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield store
    finally:
        server.shutdown()
        server.server_close()

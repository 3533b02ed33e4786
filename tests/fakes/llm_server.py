"""A real HTTP server in the OpenAI chat completions and the Anthropic messages form that misbehaves on command.

In a test: `with LlmServer() as server: server.reply(openai_answer(), failure(429, "slow down"))`. For other processes:
`python -m tests.fakes.llm_server PORT`, and POST a list of replies to `/_replies` (see `Reply`).
"""

from __future__ import annotations

import json
import socket
import struct
import sys
import threading
from collections import deque
from dataclasses import asdict, dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal, Self

BODY_BYTES_MAX = 64 * 1024 * 1024
DRIP_SECONDS = 0.05  # between the bytes of a reply that is dripped


@dataclass(frozen=True)
class Reply:
    """One HTTP answer, and how it goes wrong.

    `drop`: close the connection `before` a byte is sent, or in the `middle` of the body. `drip`: byte by byte.
    """

    status: int = 200
    body: Any = None
    raw: str | None = None
    content_type: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)
    delay_seconds: float = 0
    drop: Literal["", "before", "middle"] = ""
    drip: bool = False

    def payload(self) -> bytes:
        return (json.dumps(self.body) if self.raw is None else self.raw).encode()


@dataclass(frozen=True)
class Seen:
    """One request as it arrived."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]


def openai_answer(
    text: str | None = "hello", calls: list[Any] | None = None, finish_reason: Any = None, **top: Any
) -> Reply:
    """A chat completion; a call is (id, name, raw arguments)."""
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = [
            {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}
            for id_, name, arguments in calls
        ]
    reason = finish_reason or ("tool_calls" if calls else "stop")
    body = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "served-model",
        "choices": [{"index": 0, "message": message, "finish_reason": reason}],
        "usage": {"prompt_tokens": 12, "completion_tokens": 5, "total_tokens": 17},
    }
    return Reply(body=body | top, headers={"x-request-id": "req-openai-1"})


def anthropic_answer(
    text: str | None = "hello", calls: list[Any] | None = None, stop_reason: Any = None, **top: Any
) -> Reply:
    """A message; a call is (id, name, input)."""
    content: list[dict[str, Any]] = [{"type": "text", "text": text}] if text else []
    content += [{"type": "tool_use", "id": id_, "name": name, "input": given} for id_, name, given in calls or []]
    body = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "served-model",
        "content": content,
        "stop_reason": stop_reason or ("tool_use" if calls else "end_turn"),
        "stop_sequence": None,
        "usage": {"input_tokens": 10, "output_tokens": 5, "cache_read_input_tokens": 2},
    }
    return Reply(body=body | top, headers={"request-id": "req-anthropic-1"})


def failure(
    status: int, message: str, *, type_: str = "", code: Any = None, headers: dict[str, str] | None = None
) -> Reply:
    """An error body that both client libraries can read."""
    body = {"type": "error", "error": {"type": type_ or "some_error", "code": code, "message": message}}
    return Reply(status=status, body=body, headers={"x-request-id": "req-failed-1"} | (headers or {}))


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.replies: deque[Reply] = deque()
        self.seen: list[Seen] = []
        self.stopping = threading.Event()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up early is what half of the tests are about."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(min(int(self.headers["Content-Length"]), BODY_BYTES_MAX)))
        if self.path == "/_replies":
            self.server.replies.extend(Reply(**reply) for reply in body)
            return self._send(Reply(body={"queued": len(self.server.replies)}))
        self.server.seen.append(Seen(self.path, {name.lower(): value for name, value in self.headers.items()}, body))
        usual = anthropic_answer() if self.path.endswith("/messages") else openai_answer()
        return self._send(self.server.replies.popleft() if self.server.replies else usual)

    def do_GET(self) -> None:
        self._send(Reply(body={"seen": [asdict(seen) for seen in self.server.seen]}))

    def _send(self, reply: Reply) -> None:
        self.server.stopping.wait(reply.delay_seconds)
        if reply.drop == "before":
            return self._reset()
        payload = reply.payload()
        self.send_response(reply.status)
        for name, value in {"Content-Type": reply.content_type, **reply.headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        if reply.drop == "middle":
            self.wfile.write(payload[: len(payload) // 2])
            self.wfile.flush()
            return self._reset()
        return self._write(payload, drip=reply.drip)

    def _write(self, payload: bytes, *, drip: bool) -> None:
        if not drip:
            self.wfile.write(payload)
            return
        for byte in payload:
            if self.server.stopping.wait(DRIP_SECONDS):
                return
            self.wfile.write(bytes([byte]))
            self.wfile.flush()

    def _reset(self) -> None:
        """End the connection as a crashed process does: a reset, not a polite end."""
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Tests read `seen`."""


class LlmServer:
    """The server in a thread of this process."""

    def __init__(self, port: int = 0) -> None:
        self._server = _Server(port)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stopping.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=5)

    @property
    def openai_url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    @property
    def anthropic_url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def seen(self) -> list[Seen]:
        return self._server.seen

    def reply(self, *replies: Reply) -> None:
        """Queue answers; when the queue is empty the server says hello."""
        self._server.replies.extend(replies)


def main() -> None:
    server = _Server(int(sys.argv[1]))
    sys.stdout.write(f"listening on http://127.0.0.1:{server.server_address[1]}\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    main()

"""What an odd HTTP answer says about a call: refused, unclear, or a result all the same."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from runs.boundary.contracts import NotSent, Refused
from runs.boundary.effects import mcp
from runs.boundary.mcp_pool import close_sessions
from runs.boundary.mcp_sessions import CallTimedOut, Unclear
from tests.mcp_servers.running import dispatch

SAID = {"content": [{"type": "text", "text": "said"}]}
JSON = "content-type: application/json\r\n"
WAIT = b": wait\n\n"  # the connection stays open after it
EVENTS = "content-type: text/event-stream\r\n"


@pytest.fixture(autouse=True)
async def sessions_end() -> AsyncIterator[None]:
    yield
    await close_sessions()


def reply(status: str, headers: str = "", body: str | bytes = "") -> bytes:
    data = body.encode() if isinstance(body, str) else body
    return f"HTTP/1.1 {status}\r\n{headers}content-length: {len(data)}\r\nconnection: close\r\n\r\n".encode() + data


def result(request_id: int, value: Any) -> str:
    return json.dumps({"jsonrpc": "2.0", "id": request_id, "result": value})


@asynccontextmanager
async def http_server(answer: Callable[[int], bytes], seen: list[dict[str, str]]) -> AsyncIterator[dict[str, Any]]:
    """A server that initializes properly and answers each call with the bytes of `answer(request id)`."""

    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        headers = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
        request = json.loads(await reader.readexactly(int(headers.get("content-length", 0))) or b"{}")
        seen.append({**headers, "method": str(request.get("method"))})
        writer.write(_answer(request, answer))
        await writer.drain()
        if request.get("method") != "tools/call" or not answer(0).endswith(WAIT):
            writer.close()
        writers.append(writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        try:
            yield {"name": "odd", "transport": "http", "url": f"http://127.0.0.1:{port}/mcp", "handshake": "initialize"}
        finally:
            for writer in writers:
                writer.close()
                with suppress(ConnectionError):
                    await writer.wait_closed()


def _answer(request: dict[str, Any], answer: Callable[[int], bytes]) -> bytes:
    match request.get("method"):
        case "initialize":
            info = {"name": "odd", "version": "1"}
            said = {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": info}
            return reply("200 OK", JSON, result(request["id"], said))
        case "tools/list":
            return reply("200 OK", JSON, result(request["id"], {"tools": []}))
        case "tools/call":
            return answer(request["id"])
    return reply("202 Accepted")


async def answered(answer: Callable[[int], bytes], seconds: float = 10, **config: Any) -> Any:
    seen: list[dict[str, str]] = []
    async with http_server(answer, seen) as server:
        try:
            return await mcp.perform(dispatch({**server, **config}, "tool", seconds=seconds))
        finally:
            assert [request["method"] for request in seen].count("tools/call") <= 1, "the call was sent twice"


@pytest.mark.parametrize(
    "status", ["400 Bad", "401 Unauthorized", "403 Forbidden", "404 Gone", "413 Large", "429 Slow"]
)
async def test_a_rejecting_status_is_a_refusal(status: str) -> None:
    with pytest.raises(Refused, match=status[:3]):
        await answered(lambda _: reply(status, body="no"))


@pytest.mark.parametrize("status", ["408 Timeout", "409 Conflict", "500 Error", "502 Bad", "503 Busy", "504 Late"])
async def test_any_other_error_status_is_unclear(status: str) -> None:
    with pytest.raises(Unclear, match=status[:3]):
        await answered(lambda _: reply(status, body="no"))


async def test_a_json_rpc_error_in_the_body_says_why() -> None:
    body = '{"jsonrpc":"2.0","id":null,"error":{"code":-32602,"message":"amount is missing"}}'
    with pytest.raises(Refused, match="amount is missing"):
        await answered(lambda _: reply("500 Error", JSON, body))


UNREADABLE = [
    reply("202 Accepted"),
    reply("204 No Content"),
    reply("302 Found", "location: https://elsewhere.example/\r\n"),
    reply("200 OK", JSON, "this is no JSON"),
    reply("200 OK", JSON, ""),
    reply("200 OK", "content-type: text/html\r\n", "<p>hello"),
    reply("200 OK", EVENTS, "data: nonsense\n\n"),
    reply("200 OK", EVENTS, ": nothing follows\n\n"),
    reply("200 OK", JSON + "content-encoding: gzip\r\n", b"\x1f\x8b"),
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 900\r\n\r\n{",
    b"nonsense\r\n\r\n",
    b"",
]


@pytest.mark.parametrize("answer", UNREADABLE)
async def test_an_answer_that_says_nothing_is_unclear_and_never_a_refusal(answer: bytes) -> None:
    with pytest.raises(Unclear):
        await answered(lambda _: answer)


async def test_no_answer_at_all_is_a_time_out() -> None:
    with pytest.raises(CallTimedOut):
        await answered(lambda _: b"HTTP/1.1 200 OK\r\n" + EVENTS.encode() + b"\r\n" + WAIT, seconds=1.5)


@pytest.mark.parametrize(
    "write",
    [
        lambda i: reply("200 OK", JSON, result(i, SAID)),
        lambda i: reply("200 OK", JSON, json.dumps(json.loads(result(i, SAID)), indent=2)),
        lambda i: reply("200 OK", EVENTS, f"event: message\nid: 7\ndata: {result(i, SAID)}\n\n"),
        lambda i: reply("200 OK", EVENTS, f"data:{result(i, SAID)}\r\n\r\n"),
        lambda i: reply(
            "200 OK",
            EVENTS,
            "".join(f"data: {x}\n" for x in json.dumps(json.loads(result(i, SAID)), indent=1).split("\n")) + "\n",
        ),
    ],
)
async def test_every_way_to_write_a_result_is_read(write: Callable[[int], bytes]) -> None:
    answer = await answered(write)
    assert (answer.text, answer.invalid) == ("said", "")


@pytest.mark.parametrize("kind", [JSON, EVENTS])
async def test_odd_characters_are_shown_and_said(kind: str) -> None:
    def write(request_id: int) -> bytes:
        body = result(
            request_id, {"content": [{"type": "text", "text": "a\ud800b"}], "structuredContent": float("nan")}
        )
        return reply("200 OK", kind, body if kind is JSON else f"data: {body}\n\n")

    answer = await answered(write)
    assert answer.text == "a\\ud800b"
    assert "surrogate" in answer.invalid


async def test_headers_come_from_where_the_secrets_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "Bearer canary-99")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    seen: list[dict[str, str]] = []
    async with http_server(lambda i: reply("200 OK", JSON, result(i, SAID)), seen) as server:
        await mcp.perform(dispatch({**server, "headers": {"Authorization": {"from_env": "MY_TOKEN"}}}, "tool"))
    assert {request["authorization"] for request in seen} == {"bearer canary-99"}


async def test_a_header_whose_secret_is_gone_keeps_the_call_here(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotSent, match="NOT_SET_ANYWHERE"):
        await answered(lambda _: b"", headers={"Authorization": {"from_env": "NOT_SET_ANYWHERE"}})


async def test_a_secret_in_an_error_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "canary-99")
    body = '{"jsonrpc":"2.0","id":null,"error":{"code":-32603,"message":"canary-99 is expired"}}'
    with pytest.raises(Unclear, match=r"\[secret\] is expired"):
        await answered(lambda _: reply("500 Error", JSON, body), headers={"X": {"from_env": "MY_TOKEN"}})

"""C11. An MCP server dies in the middle of a call: found out at once, unclear, never repeated."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from runs.boundary.contracts import NotSent, ProbeVerdict, Refused
from runs.boundary.effects import mcp
from runs.boundary.mcp_pool import close_sessions
from runs.boundary.mcp_sessions import CallTimedOut, SessionLost, Unclear
from tests.mcp_servers.running import Marks, dispatch, free_port, http_ledger, lines, stdio_config

NOTICED_SECONDS = 5
AT_ONCE_SECONDS = 8  # the calls' own limit is 20 s


@pytest.fixture(autouse=True)
async def sessions_end() -> AsyncIterator[None]:
    yield
    await close_sessions()


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "ledger"


@pytest.fixture(params=["stdio", "http"])
def server(request: pytest.FixtureRequest, ledger: Path) -> Iterator[dict[str, Any]]:
    if request.param == "stdio":
        yield stdio_config("ledger.py", ledger)
        return
    with http_ledger(ledger, free_port()) as config:
        yield config


async def the_server_notices_the_cancellation(ledger: Path) -> None:
    async with asyncio.timeout(NOTICED_SECONDS):
        while {"tool": "hang", "cancelled": True} not in lines(ledger):
            await asyncio.sleep(0.02)


async def test_death_after_the_effect_is_unclear_and_found_out_at_once(server: dict[str, Any], ledger: Path) -> None:
    await mcp.perform(dispatch(server, "write"))
    started = time.monotonic()
    with pytest.raises(Unclear):
        await mcp.perform(dispatch(server, "die_after"))
    assert time.monotonic() - started < AT_ONCE_SECONDS
    assert [line["tool"] for line in lines(ledger)] == ["write", "die_after"]


async def test_death_before_the_effect_is_unclear_too(server: dict[str, Any], ledger: Path) -> None:
    with pytest.raises(Unclear):
        await mcp.perform(dispatch(server, "die_before"))
    assert lines(ledger) == []


async def test_the_next_call_gets_a_fresh_session(ledger: Path) -> None:
    server = stdio_config("ledger.py", ledger)
    with pytest.raises(SessionLost):
        await mcp.perform(dispatch(server, "die_after"))
    assert (await mcp.perform(dispatch(server, "write"))).is_error is False
    assert [line["tool"] for line in lines(ledger)] == ["die_after", "write"]


async def test_a_restarted_http_server_is_called_again(ledger: Path) -> None:
    port = free_port()
    with http_ledger(ledger, port) as server, pytest.raises(Unclear):
        await mcp.perform(dispatch(server, "die_after"))
    with http_ledger(ledger, port) as server:
        await mcp.perform(dispatch(server, "write"))
    assert [line["tool"] for line in lines(ledger)] == ["die_after", "write"]


async def test_a_session_that_a_restarted_server_forgot_is_replaced(ledger: Path) -> None:
    port = free_port()
    with http_ledger(ledger, port) as server:
        stateful = {**server, "handshake": "initialize"}
        await mcp.perform(dispatch(stateful, "write"))
    with http_ledger(ledger, port):
        with pytest.raises(Refused):
            await mcp.perform(dispatch(stateful, "write"))
        await mcp.perform(dispatch(stateful, "write"))
    assert len(lines(ledger)) == 2


async def test_the_death_of_the_server_does_not_look_like_a_cancellation(server: dict[str, Any]) -> None:
    task = asyncio.create_task(mcp.perform(dispatch(server, "die_after")))
    await asyncio.wait({task})
    assert not task.cancelled()
    assert isinstance(task.exception(), Unclear)


async def test_calls_beside_the_dying_one_are_unclear_each(server: dict[str, Any], ledger: Path) -> None:
    hanging = asyncio.create_task(mcp.perform(dispatch(server, "hang")))
    while not lines(ledger):
        await asyncio.sleep(0.02)
    with pytest.raises(Unclear):
        await mcp.perform(dispatch(server, "die_after"))
    with pytest.raises(Unclear):
        await hanging


async def test_a_server_that_cannot_be_started_got_nothing(tmp_path: Path) -> None:
    marks = Marks()
    server = {"name": "x", "transport": "stdio", "command": "/nonexistent/server"}
    with pytest.raises(NotSent, match="cannot start /nonexistent/server"):
        await mcp.perform(dispatch(server, "write", marks=marks))
    assert marks.sending == 0


async def test_an_http_server_that_is_not_there_got_nothing() -> None:
    marks = Marks()
    server = {"name": "x", "transport": "http", "url": f"http://127.0.0.1:{free_port()}/mcp"}
    with pytest.raises(NotSent, match="ConnectError"):
        await mcp.perform(dispatch(server, "write", marks=marks))
    assert marks.sending == 0


async def test_an_http_server_that_is_gone_before_the_call_got_nothing(ledger: Path) -> None:
    port = free_port()
    with http_ledger(ledger, port) as server:
        await mcp.perform(dispatch(server, "write"))
    with pytest.raises(NotSent):
        await mcp.perform(dispatch(server, "write"))
    assert len(lines(ledger)) == 1


async def test_the_sending_mark_is_set_once_and_before_the_effect(server: dict[str, Any], ledger: Path) -> None:
    marks = Marks()
    operation = dispatch(server, "write", marks=marks)
    await mcp.perform(operation)
    assert marks.sending == 1
    assert lines(ledger) == [{"tool": "write", "key": operation.idempotency_key}]


async def test_a_mark_that_cannot_be_written_keeps_the_call_here(server: dict[str, Any], ledger: Path) -> None:
    marks = Marks()

    async def no_database() -> None:
        raise ConnectionError("the database is gone")

    marks.mark = no_database  # type: ignore[method-assign]
    with pytest.raises(NotSent, match="database is gone"):
        await mcp.perform(dispatch(server, "write", marks=marks))
    assert lines(ledger) == []


async def test_a_call_without_an_answer_is_unclear_and_stopped_at_the_server(
    server: dict[str, Any], ledger: Path
) -> None:
    with pytest.raises(CallTimedOut):
        await mcp.perform(dispatch(server, "hang", seconds=3))
    await the_server_notices_the_cancellation(ledger)
    assert {"tool": "hang", "late": True} not in lines(ledger)


async def test_cancelling_the_caller_cancels_the_call_at_the_server(server: dict[str, Any], ledger: Path) -> None:
    marks = Marks()
    task = asyncio.create_task(mcp.perform(dispatch(server, "hang", marks=marks)))
    while not marks.heartbeats:
        await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await the_server_notices_the_cancellation(ledger)


FIND = {"tool": "find", "found_when": {"contains": '"key": "{operation_id}"'}}


@pytest.mark.parametrize(("tool", "expected"), [("die_after", ProbeVerdict.ONE), ("die_before", ProbeVerdict.ABSENT)])
async def test_a_look_up_settles_what_became_of_it(ledger: Path, tool: str, expected: ProbeVerdict) -> None:
    operation = dispatch(stdio_config("ledger.py", ledger), tool, probe=FIND)
    with pytest.raises(SessionLost):
        await mcp.perform(operation)
    answer = await mcp.probe(operation)
    assert answer.verdict is expected
    assert (answer.result is not None) is (expected is ProbeVerdict.ONE)

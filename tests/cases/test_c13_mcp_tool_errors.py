"""C13. A tool that reports an error: shown as one, with words, and the flag alone decides."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from runs.boundary.contracts import Refused
from runs.boundary.effects import mcp
from runs.boundary.mcp_pool import close_sessions
from runs.boundary.mcp_results import NEEDS_INPUT, NO_ERROR_TEXT, NO_TEXT
from runs.boundary.mcp_sessions import Unclear
from tests.mcp_servers.running import dispatch, lines, raw_config, stdio_config


@pytest.fixture(autouse=True)
async def sessions_end() -> AsyncIterator[None]:
    yield
    await close_sessions()


async def test_the_real_server_s_errors(tmp_path: Path) -> None:
    server = stdio_config("ledger.py", tmp_path / "ledger")
    failed = await mcp.perform(dispatch(server, "fail"))
    assert (failed.is_error, failed.text) == (True, "the account is closed")
    empty = await mcp.perform(dispatch(server, "fail_empty"))
    assert (empty.is_error, empty.text) == (True, NO_ERROR_TEXT)
    with pytest.raises(Refused, match="amount is missing"):
        await mcp.perform(dispatch(server, "invalid_params"))
    word = await mcp.perform(dispatch(server, "says_error"))
    assert (word.is_error, word.text) == (False, "Error: this is only a word")
    asks = await mcp.perform(dispatch(server, "ask"))
    assert (asks.is_error, asks.text) == (True, NEEDS_INPUT)
    assert [line["tool"] for line in lines(tmp_path / "ledger")] == ["fail"]


@pytest.mark.parametrize(
    ("result", "is_error", "text"),
    [
        ('{"content":[{"type":"text","text":"no"}],"isError":true}', True, "no"),
        ('{"content":[],"isError":true}', True, NO_ERROR_TEXT),
        ('{"content":[{"type":"text","text":"  "}],"isError":true}', True, NO_ERROR_TEXT),
        ('{"content":[{"type":"text","text":"Error: x"}],"isError":false}', False, "Error: x"),
        ('{"content":[]}', False, NO_TEXT),
        ('{"content":[],"structuredContent":{"a":1}}', False, '{"a": 1}'),
    ],
)
async def test_the_flag_decides(tmp_path: Path, result: str, is_error: bool, text: str) -> None:
    server = raw_config(tmp_path, {"tool": result})
    answer = await mcp.perform(dispatch(server, "tool"))
    assert (answer.is_error, answer.text, answer.invalid) == (is_error, text, "")


@pytest.mark.parametrize("code", [-32700, -32600, -32601, -32602, -32020, -32042])
async def test_a_refusal_is_no_effect(tmp_path: Path, code: int) -> None:
    with pytest.raises(Refused, match=str(code)):
        await mcp.perform(dispatch(raw_config(tmp_path, {}), f"code{code}"))


@pytest.mark.parametrize("code", [-32603, -32000, -32001, -32099, 0, 500])
async def test_any_other_error_is_unclear(tmp_path: Path, code: int) -> None:
    with pytest.raises(Unclear):
        await mcp.perform(dispatch(raw_config(tmp_path, {}), f"code{code}"))


async def test_an_unfinished_result_of_an_unknown_kind_is_unclear(tmp_path: Path) -> None:
    server: dict[str, Any] = raw_config(tmp_path, {"tool": '{"resultType":"task","taskId":"1"}'})
    with pytest.raises(Unclear, match="task"):
        await mcp.perform(dispatch(server, "tool"))

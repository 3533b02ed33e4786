"""C18. Results of any size and kind: the effect stands, and what could not be kept is said."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from runs.boundary import mcp_wire
from runs.boundary.contracts import EffectResult
from runs.boundary.effects import mcp
from runs.boundary.mcp_pool import close_sessions
from tests.mcp_servers.running import dispatch, free_port, http_ledger, lines, raw_config, stdio_config

SCHEMA = {"type": "object"}


@pytest.fixture(autouse=True)
async def sessions_end() -> AsyncIterator[None]:
    yield
    await close_sessions()


def text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


async def answered(folder: Path, result: str, bytes_max: int = 1_000_000, **tool: Any) -> EffectResult:
    tools = [{"name": "tool", "inputSchema": SCHEMA, **tool}]
    server = raw_config(folder, {"tool": result, "tools": tools})
    return await mcp.perform(dispatch(server, "tool", result_bytes_max=bytes_max))


@pytest.mark.parametrize("size", [159_000, 3_000_000, 30_000_000])
async def test_long_text_is_cut_and_said_to_be(tmp_path: Path, size: int) -> None:
    result = json.dumps({"content": [text(f"@SIZE:{size}@")]})
    answer = await answered(tmp_path, result, bytes_max=100_000)
    assert (len(answer.text), answer.truncated, answer.invalid) == (100_000, True, "")


async def test_what_fits_is_whole(tmp_path: Path) -> None:
    answer = await answered(tmp_path, '{"content":[{"type":"text","text":"@SIZE:3000000@"}]}', bytes_max=3_000_000)
    assert (len(answer.text), answer.truncated) == (3_000_000, False)


async def test_a_cut_never_splits_a_character(tmp_path: Path) -> None:
    for bytes_max in range(10, 15):
        answer = await answered(tmp_path, json.dumps({"content": [text("éé€€😀😀")]}), bytes_max=bytes_max)
        assert "éé€€😀😀".startswith(answer.text)
        assert bytes_max - 3 <= len(answer.text.encode()) <= bytes_max


async def test_an_answer_too_long_to_be_read_is_kept_in_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_wire.LineSplitter.__init__, "__defaults__", (100_000,))
    answer = await answered(tmp_path, '{"content":[{"type":"text","text":"@SIZE:300000@"}],"isError":true}')
    assert (answer.truncated, answer.is_error) == (True, True)
    assert "too long" in answer.invalid
    assert "xxx" in answer.text


async def test_a_hundred_blocks(tmp_path: Path) -> None:
    answer = await answered(tmp_path, json.dumps({"content": [text(f"block {i}") for i in range(100)]}))
    assert answer.text.splitlines() == [f"block {i}" for i in range(100)]


async def test_bytes_are_named_and_not_inlined(tmp_path: Path) -> None:
    raw = b"\x89PNG" * 1_250_000
    data = base64.b64encode(raw).decode()
    content = [
        {"type": "image", "data": data, "mimeType": "image/png"},
        {"type": "audio", "data": "AAAA", "mimeType": "audio/wav"},
        {"type": "resource_link", "uri": "file:///a", "name": "a", "mimeType": "text/plain"},
        {"type": "resource", "resource": {"uri": "file:///b", "text": "inside"}},
        {"type": "resource", "resource": {"uri": "file:///c", "blob": "AAAA", "mimeType": "x/y"}},
    ]
    answer = await answered(tmp_path, json.dumps({"content": content}))
    assert answer.text.splitlines() == [
        f"[image/png, 5000000 bytes, sha256 {hashlib.sha256(raw).hexdigest()}]",
        f"[audio/wav, 3 bytes, sha256 {hashlib.sha256(bytes(3)).hexdigest()}]",
        "[resource file:///a, a, text/plain]",
        "[resource file:///b]",
        "inside",
        "[resource file:///c]",
        f"[x/y, 3 bytes, sha256 {hashlib.sha256(bytes(3)).hexdigest()}]",
    ]
    assert answer.invalid == ""


BESIDE_TEXT = '{"content":[{"type":"text","text":"x"}],"structuredContent":'
DEEP = '{"a":' * 150 + "1" + "}" * 150
TOO_DEEP = '{"a":' * 5000 + "1" + "}" * 5000


@pytest.mark.parametrize(
    ("result", "shown", "why"),
    [
        ('{"content":[{"type":"text","text":"a\\u0000b"}]}', "a␀b", "NUL"),
        ('{"content":[{"type":"text","text":"a\\ud800b"}]}', "a\\ud800b", "surrogate"),
        ('{"content":[{"type":"text","text":"a\xffb@LATIN@"}]}', "a\ufffdb", "no UTF-8"),
        ('{"content":[{"type":"hologram","text":"x"}]}', "[unknown content: hologram]", "kind"),
        ('{"content":[{"type":"image","data":"%%%","mimeType":"image/png"}]}', "not valid base64", "base64"),
        ('{"content":"text"}', "without any content", "no list"),
        ('{"content":[7]}', "without any content", "no object"),
        ('{"content":[],"structuredContent":{"a":NaN,"b":-Infinity}}', '{"a": "NaN", "b": "-Infinity"}', "numbers"),
        ('{"content":[],"structuredContent":{"a":' + "9" * 5000 + "}}", "structuredContent", "not readable"),
        (BESIDE_TEXT + DEEP + "}", "x", "nested deeper"),
        (BESIDE_TEXT + TOO_DEEP + "}", '"x"', "not readable"),
    ],
)
async def test_what_cannot_be_read_is_said_and_the_effect_stands(
    tmp_path: Path, result: str, shown: str, why: str
) -> None:
    answer = await answered(tmp_path, result)
    assert shown in answer.text
    assert why in answer.invalid
    assert answer.is_error is False


async def test_large_structured_content_is_left_out(tmp_path: Path) -> None:
    result = '{"content":[{"type":"text","text":"short"}],"structuredContent":{"a":"@SIZE:3000@"}}'
    answer = await answered(tmp_path, result, bytes_max=2000)
    assert (answer.text, answer.structured, answer.truncated) == ("short", None, True)


async def test_a_result_against_the_tool_s_own_schema_is_marked(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"total": {"type": "integer"}}, "required": ["total"]}
    wrong = await answered(tmp_path, '{"content":[],"structuredContent":{"total":"many"}}', outputSchema=schema)
    assert wrong.structured == {"total": "many"}
    assert "does not fit" in wrong.invalid
    missing = await answered(tmp_path, '{"content":[{"type":"text","text":"x"}]}', outputSchema=schema)
    assert (missing.text, "gave none" in missing.invalid) == ("x", True)


async def test_the_real_server_s_mismatch_is_no_exception_after_the_effect(tmp_path: Path) -> None:
    server = stdio_config("ledger.py", tmp_path / "ledger")
    answer = await mcp.perform(dispatch(server, "total", {"total": "many"}))
    assert "does not fit" in answer.invalid or answer.is_error
    assert len(lines(tmp_path / "ledger")) == 1


async def test_secrets_that_a_server_repeats_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEDGER_TOKEN", "canary-7f3a9")
    result = (
        '{"content":[{"type":"text","text":"token canary-7f3a9"}],"structuredContent":{"canary-7f3a9":"canary-7f3a9"}}'
    )
    server = raw_config(tmp_path, {"tool": result}, environment={"TOKEN": {"from_env": "LEDGER_TOKEN"}})
    answer = await mcp.perform(dispatch(server, "tool"))
    assert "canary" not in answer.model_dump_json()


@pytest.mark.parametrize("size", [3_000_000])
async def test_long_answers_arrive_over_http(tmp_path: Path, size: int) -> None:
    with http_ledger(tmp_path / "ledger", free_port()) as server:
        await mcp.perform(dispatch(server, "write", {"long": "x" * size}))
        found = await mcp.perform(dispatch(server, "find", result_bytes_max=10_000_000))
    assert len(found.text) > size
    assert found.truncated is False

"""C15. Tools with names that no provider takes: mapped, told apart, and called by their own names."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from runs.boundary.contracts import NotSent
from runs.boundary.effects import mcp
from runs.boundary.mcp_config import McpServerConfig
from runs.boundary.mcp_pool import close_sessions
from runs.boundary.mcp_tools import Listing, definition_digest, list_tools
from runs.boundary.tool_names import exposed_names
from tests.mcp_servers.running import dispatch, lines, raw_config, stdio_config

SERVER = "internal search (eu)"
SCHEMA = {"type": "object"}
FIT = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")


@pytest.fixture(autouse=True)
async def sessions_end() -> AsyncIterator[None]:
    yield
    await close_sessions()


async def listed(folder: Path, *tools: Mapping[str, object]) -> Listing:
    config = {**raw_config(folder, {"tools": list(tools)}), "name": SERVER}
    return await list_tools(McpServerConfig.model_validate(config))


async def test_one_unusable_tool_is_left_out_and_the_others_work(tmp_path: Path) -> None:
    names = ["a.b", "a_b", "Ünïcode", "x" * 120, "", "twice", "twice", "good"]
    tools = [{"name": name, "description": str(i), "inputSchema": SCHEMA} for i, name in enumerate(names)]
    listing = await listed(tmp_path, *tools, {"name": "no schema"})
    assert [tool.name for tool in listing.tools] == ["a.b", "a_b", "Ünïcode", "x" * 120, "good"]
    assert [problem.split(" is left out: ")[1] for problem in listing.problems] == [
        "it has no name",
        "the server lists different tools by this name",
        "the server lists different tools by this name",
        "its input schema is not that of an object",
    ]


@pytest.mark.parametrize(
    ("tool", "why"),
    [
        ({"name": "x" * 300, "inputSchema": SCHEMA}, "longer than 256"),
        ({"name": "a\nb", "inputSchema": SCHEMA}, "control characters"),
        ({"name": "x", "description": "y" * 20_000, "inputSchema": SCHEMA}, "more than 16384 characters"),
        ({"name": "x", "description": "a\0b", "inputSchema": SCHEMA}, "NUL"),
        ({"name": "x", "inputSchema": {**SCHEMA, "description": "y" * 70_000}}, "at most 65536"),
        ({"name": "x", "inputSchema": {**SCHEMA, "properties": {"a": {"type": "strin"}}}}, "not valid JSON Schema"),
        ({"name": "x", "inputSchema": {"type": "array"}}, "not that of an object"),
        ({"name": 7, "inputSchema": SCHEMA}, "no name"),
    ],
)
async def test_what_makes_a_tool_unusable(tmp_path: Path, tool: dict[str, object], why: str) -> None:
    listing = await listed(tmp_path, tool, {"name": "good", "inputSchema": SCHEMA})
    assert [tool.name for tool in listing.tools] == ["good"]
    assert why in listing.problems[0]


async def test_no_more_tools_than_the_limit(tmp_path: Path) -> None:
    listing = await listed(tmp_path, *({"name": f"t{i}", "inputSchema": SCHEMA} for i in range(600)))
    assert len(listing.tools) == 500
    assert "600 tools" in listing.problems[0]


async def test_odd_tools_are_called_by_their_own_names(tmp_path: Path) -> None:
    config = stdio_config("ledger.py", tmp_path / "ledger")
    listing = await list_tools(McpServerConfig.model_validate(config))
    odd = [tool.name for tool in listing.tools if tool.name in ("a.b", "a_b", "Ünïcode", "x" * 120)]
    names = exposed_names((SERVER, tool) for tool in odd)
    assert len(set(names.values())) == 4
    assert all(FIT.match(name) for name in names.values())
    for tool in odd:
        await mcp.perform(dispatch(config, tool))
    assert [line["tool"] for line in lines(tmp_path / "ledger")] == odd


async def test_an_approval_binds_to_the_definition(tmp_path: Path) -> None:
    tool = {"name": "pay", "description": "Pays.", "inputSchema": SCHEMA}
    first = (await listed(tmp_path, tool)).tools[0]
    again = (await listed(tmp_path, {**tool, "annotations": {"readOnlyHint": True}, "title": "Pay"})).tools[0]
    other = (await listed(tmp_path, {**tool, "description": "Pays twice."})).tools[0]
    assert definition_digest(first) == definition_digest(again) != definition_digest(other)


async def test_a_server_that_changed_the_tool_is_not_called(tmp_path: Path) -> None:
    tool = {"name": "pay", "description": "Pays.", "inputSchema": SCHEMA}
    digest = definition_digest((await listed(tmp_path, tool)).tools[0])
    paid = '{"content":[{"type":"text","text":"paid"}]}'
    same = {**raw_config(tmp_path, {"tools": [tool], "pay": paid}), "name": SERVER}
    assert (await mcp.perform(dispatch(same, "pay", definition_digest=digest))).text == "paid"
    changed = {**raw_config(tmp_path, {"tools": [{**tool, "description": "!"}], "pay": paid}), "name": SERVER}
    with pytest.raises(NotSent, match="changed its definition"):
        await mcp.perform(dispatch(changed, "pay", definition_digest=digest))

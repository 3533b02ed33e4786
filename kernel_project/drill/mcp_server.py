"""An MCP server over stdio whose tools go wrong, for row F2: `python -m kernel_project.drill.mcp_server`.

`pay_and_die` books in the ledger and dies before it answers; `pay_and_fail` says that it failed, and does nothing.
"""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import mcp_types as types
from mcp.server import Server, ServerRequestContext
from mcp.server.stdio import stdio_server

from kernel_project.drill.ledger_process import LedgerClient

NAME = "drill-server"
TOOLS = ("pay_and_die", "pay_and_fail")
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}


async def list_tools(_context: ServerRequestContext[Any], _params: Any) -> types.ListToolsResult:
    return types.ListToolsResult(
        tools=[types.Tool(name=name, description="A tool that goes wrong.", input_schema=SCHEMA) for name in TOOLS]
    )


async def call_tool(_context: ServerRequestContext[Any], params: types.CallToolRequestParams) -> Any:
    arguments = params.arguments or {}
    if params.name == "pay_and_fail":
        said = types.TextContent(type="text", text="the account is closed")
        return types.CallToolResult(content=[said], is_error=True)
    await asyncio.to_thread(LedgerClient().book, "opaque", str(arguments["text"]), "")
    return os.kill(os.getpid(), signal.SIGKILL)


async def main() -> None:
    server = Server(NAME, on_list_tools=list_tools, on_call_tool=call_tool)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


if __name__ == "__main__":
    asyncio.run(main())

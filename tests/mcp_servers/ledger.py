"""A real MCP server, over stdio or streamable HTTP, that writes one fsynced line for each call it executes.

    ledger.py LEDGER_FILE [HTTP_PORT]

Its tools misbehave on demand: they hang, die before or after their effect, report errors, ask for input.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import mcp_types as types
import uvicorn
from mcp.server import Server, ServerRequestContext
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError

LEDGER = Path(sys.argv[1])
ANYTHING = {"type": "object", "properties": {}, "additionalProperties": True}
NAMES = [
    "write",
    "die_after",
    "die_before",
    "hang",
    "fail",
    "fail_empty",
    "invalid_params",
    "says_error",
    "ask",
    "find",
]
ODD_NAMES = ["a.b", "a_b", "Ünïcode", "x" * 120]
TOTAL_SCHEMA = {"type": "object", "properties": {"total": {"type": "integer"}}, "required": ["total"]}


def write_line(**facts: Any) -> None:
    with LEDGER.open("a") as file:
        file.write(json.dumps(facts) + "\n")
        file.flush()
        os.fsync(file.fileno())


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def text_result(text: str, **more: Any) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)], **more)


async def list_tools(context: ServerRequestContext[Any], params: Any) -> types.ListToolsResult:
    tools = [types.Tool(name=name, description=f"Does {name}.", input_schema=ANYTHING) for name in NAMES + ODD_NAMES]
    tools.append(types.Tool(name="total", input_schema=ANYTHING, output_schema=TOTAL_SCHEMA))
    return types.ListToolsResult(tools=tools)


async def call_tool(context: ServerRequestContext[Any], params: types.CallToolRequestParams) -> Any:
    arguments = params.arguments or {}
    key = str((params.meta or {}).get("idempotency_key", ""))
    match params.name:
        case "find":
            return text_result(LEDGER.read_text() if LEDGER.exists() else "")
        case "die_before":
            die()
        case "invalid_params":
            raise MCPError(code=types.INVALID_PARAMS, message="amount is missing")
        case "ask":
            return types.InputRequiredResult(request_state="later")
        case "fail":
            write_line(tool="fail", key=key)
            return text_result("the account is closed", is_error=True)
        case "fail_empty":
            return types.CallToolResult(content=[], is_error=True)
        case "says_error":
            return text_result("Error: this is only a word")
        case "total":
            write_line(tool="total", key=key)
            return types.CallToolResult(content=[], structured_content={"total": arguments.get("total")})
    write_line(tool=params.name, key=key, **({"arguments": arguments} if arguments else {}))
    if params.name == "die_after":
        die()
    if params.name == "hang":
        await hang(context, float(arguments.get("seconds", 30)))
    return text_result(f"written, key {key}", structured_content={"key": key})


async def hang(context: ServerRequestContext[Any], seconds: float) -> None:
    try:
        for step in range(int(seconds * 20)):
            await context.session.report_progress(step, seconds * 20)
            await asyncio.sleep(0.05)
        write_line(tool="hang", late=True)
    except asyncio.CancelledError:
        write_line(tool="hang", cancelled=True)
        raise


async def main() -> None:
    server = Server("ledger", on_list_tools=list_tools, on_call_tool=call_tool)
    if len(sys.argv) > 2:
        config = uvicorn.Config(server.streamable_http_app(), port=int(sys.argv[2]), log_level="error")
        await uvicorn.Server(config).serve()
        return
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


if __name__ == "__main__":
    asyncio.run(main())

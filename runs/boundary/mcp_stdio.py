"""An MCP server as a child process: clean environment, bounded lines, and no process left behind.

In the place of the library's transport, which inherits part of the worker's environment, keeps lines of any length and
cannot end descendants of a worker that was killed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage

from runs.boundary import mcp_calls, mcp_stdio_guard
from runs.boundary.mcp_config import WORKSPACE, McpServerConfig, process_environment
from runs.boundary.mcp_wire import LineSplitter, Streams, read_message

CHUNK_BYTES = 256 * 1024
STDERR_BYTES_KEPT = 4 * 1024  # the end of what the server complained about, for the error of a failed start
END_SECONDS = 2.0  # for a server to end by itself once its input is closed, as the protocol asks
KILL_SECONDS = 2.0  # for the guard to end everything
GUARD = str(Path(mcp_stdio_guard.__file__).resolve())

logger = logging.getLogger(__name__)


@dataclass
class ServerProcess:
    """What the session needs to know of its process while it runs and after."""

    stderr: bytearray = field(default_factory=bytearray)
    pid: int = 0
    lock: str = ""  # the file whose lock the process and its descendants hold; see `mcp_calls`
    end_now: bool = False  # do not wait for the server to end by itself: nothing it still does must happen

    def complaint(self) -> str:
        return " ".join(self.stderr.decode("utf-8", "replace").split())


@asynccontextmanager
async def stdio_streams(config: McpServerConfig, workspace: str, server: ServerProcess) -> AsyncGenerator[Streams]:
    """Start the server and give its streams; on leaving, no process of it remains.

    Raises OSError if the working directory is missing, ValueMissing if a declared value cannot be read.
    """
    await asyncio.to_thread(mcp_calls.tidy)
    with mcp_calls.held_lock() as (server.lock, descriptor):
        process = await _start(config, workspace, () if descriptor is None else (descriptor,))
    server.pid = process.pid
    read_in, read_out = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    write_in, write_out = anyio.create_memory_object_stream[SessionMessage](0)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_read_messages, process, read_in)
        tasks.start_soon(_write_messages, process, write_out, read_in)
        tasks.start_soon(_keep_complaints, process, server)
        try:
            yield read_out, write_in
        finally:
            with anyio.CancelScope(shield=True):
                await _end(process, server)
                if process.returncode is not None:
                    await asyncio.to_thread(mcp_calls.forget_lock_if_free, server.lock)
            tasks.cancel_scope.cancel()
    for stream in (read_in, read_out, write_in, write_out):
        stream.close()


async def _start(config: McpServerConfig, workspace: str, locks: tuple[int, ...]) -> asyncio.subprocess.Process:
    """The guard with its server; both hold `locks` as long as one of them, or a descendant, lives."""
    guard = [sys.executable, "-I", "-S", GUARD, str(os.getpid())]
    command = [config.command, *(argument.replace(WORKSPACE, workspace) for argument in config.args)]
    return await asyncio.create_subprocess_exec(
        *guard,
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=process_environment(config, workspace),
        cwd=config.working_directory.replace(WORKSPACE, workspace) or None,
        pass_fds=locks,
        start_new_session=True,  # a Ctrl-C at the worker's terminal is the worker's to handle
    )


async def _read_messages(
    process: asyncio.subprocess.Process, received: MemoryObjectSendStream[SessionMessage | Exception]
) -> None:
    assert process.stdout is not None
    lines = LineSplitter()
    with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
        async with received:
            while chunk := await process.stdout.read(CHUNK_BYTES):
                for line in lines.feed(chunk):
                    if reading := read_message(line):
                        await received.send(SessionMessage(reading.message))
                    elif line.head.strip():
                        logger.debug("an MCP server printed %d bytes that are no message", line.size)
    while await process.stdout.read(CHUNK_BYTES):
        pass  # nobody listens any more, but a server that cannot write cannot end, and a full pipe hides its end


async def _write_messages(
    process: asyncio.subprocess.Process,
    to_send: MemoryObjectReceiveStream[SessionMessage],
    received: MemoryObjectSendStream[SessionMessage | Exception],
) -> None:
    assert process.stdin is not None
    try:
        async with to_send:
            async for item in to_send:
                text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
                process.stdin.write(text.encode() + b"\n")
                await process.stdin.drain()
    except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
        await received.aclose()  # the session learns that the connection is over, instead of waiting for an answer


async def _keep_complaints(process: asyncio.subprocess.Process, server: ServerProcess) -> None:
    assert process.stderr is not None
    while chunk := await process.stderr.read(CHUNK_BYTES):
        server.stderr += chunk[-STDERR_BYTES_KEPT:]
        del server.stderr[:-STDERR_BYTES_KEPT]


async def _end(process: asyncio.subprocess.Process, server: ServerProcess) -> None:
    assert process.stdin is not None
    with suppress(OSError):
        process.stdin.close()
    if not server.end_now and await _ended(process, END_SECONDS):
        return
    with suppress(ProcessLookupError):
        process.terminate()
    if await _ended(process, KILL_SECONDS):
        return
    with suppress(ProcessLookupError):
        process.kill()
    if not await _ended(process, KILL_SECONDS):
        logger.error("the guard of MCP server process %d cannot be ended", process.pid)


async def _ended(process: asyncio.subprocess.Process, seconds: float) -> bool:
    with anyio.move_on_after(seconds):
        await process.wait()
    return process.returncode is not None

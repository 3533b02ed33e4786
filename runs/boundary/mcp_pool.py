"""The MCP sessions of an event loop. The protocol takes a second of CPU to import: only who speaks it pays that."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from runs.boundary.mcp_sessions import McpSessions

_pools: WeakKeyDictionary[asyncio.AbstractEventLoop, McpSessions] = WeakKeyDictionary()


def current_sessions() -> McpSessions:
    """The pool of the running event loop. A worker awaits `close_sessions()` before its loop ends."""
    from runs.boundary.mcp_sessions import McpSessions

    return _pools.setdefault(asyncio.get_running_loop(), McpSessions())


async def close_sessions() -> None:
    """Close the pool of the running event loop; a later call in the same loop gets a new one."""
    pool = _pools.pop(asyncio.get_running_loop(), None)
    if pool is not None:
        await pool.close()

"""Finishing what must be finished although the caller was cancelled. Swallows no cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


async def in_thread(function: Callable[[], T]) -> T:
    """Like asyncio.to_thread, but a cancelled caller waits for the thread, which uses what the caller would close."""
    return await uninterrupted(asyncio.to_thread(function))


async def uninterrupted(work: Awaitable[T]) -> T:
    """Finish the work, then let a cancellation through that came meanwhile."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
        except Exception:
            break
    if cancelled is not None:
        task.exception()
        raise cancelled
    return task.result()

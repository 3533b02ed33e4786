"""Waiting for something to become true, with a limit."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable

POLL_SECONDS = 0.05


async def until(condition: Callable[[], bool | Awaitable[bool]], seconds: float = 30) -> None:
    """Return when the condition holds; fail the test when it does not in time."""
    deadline = time.monotonic() + seconds
    while True:
        answer = condition()
        if inspect.isawaitable(answer):
            answer = await answer
        if answer:
            return
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(POLL_SECONDS)


def until_sync(condition: Callable[[], bool], seconds: float = 30, seen: Callable[[], object] = lambda: "") -> None:
    """The same for code that is not async; `seen` says what there was instead."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"it did not happen in time: {seen()}"
        time.sleep(POLL_SECONDS)

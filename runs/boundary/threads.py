"""Run database work for async code: on threads of our own, each call with a healthy connection of its own (C65)."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

from django.db import connections

P = ParamSpec("P")
T = TypeVar("T")

DATABASE_THREADS = 8  # at most this many connections of a worker are busy at once

CALLING_THREADS = 4  # of work that also waits for another server

_pool = ThreadPoolExecutor(DATABASE_THREADS, thread_name_prefix="database")
_calling = ThreadPoolExecutor(CALLING_THREADS, thread_name_prefix="calling")


async def in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Await blocking database work. A cancelled caller stops waiting; the work itself runs to its end."""
    return await _on(_pool, partial(work, *args, **kwargs))


async def calling(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Like to_the_end, for work that waits for another server too: it takes no thread that an outcome needs."""
    return await uninterrupted(asyncio.ensure_future(_on(_calling, partial(work, *args, **kwargs))))


async def _on(pool: ThreadPoolExecutor, work: Callable[[], T]) -> T:
    call = partial(with_clean_connection, work)
    return await asyncio.get_running_loop().run_in_executor(pool, contextvars.copy_context().run, call)


async def to_the_end(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Like in_thread, but a cancellation is raised only after the work is done: for outcomes that must be written."""
    return await uninterrupted(asyncio.ensure_future(in_thread(work, *args, **kwargs)))


async def uninterrupted(task: asyncio.Future[T]) -> T:
    """Await the task to its end. A cancellation of the caller does not reach it and is raised after it."""
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # the cancellation is what the caller hears; do not warn of an error never fetched
        raise cancelled
    return task.result()


def with_clean_connection(work: Callable[[], T]) -> T:
    """Do the work on a connection that is healthy when it begins, and leave none behind on this thread."""
    _give_back()
    try:
        return work()
    finally:
        _give_back()


def _give_back() -> None:
    """What Django does around a request, for connections that always come from a pool."""
    for connection in connections.all(initialized_only=True):
        if connection.connection is not None:
            connection.close_if_unusable_or_obsolete()

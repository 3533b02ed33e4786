"""The kernel's worker beside the one who measures, in a thread and loop of its own. Used by benchmarks only."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AsyncExitStack, contextmanager

from temporalio.client import Client
from temporalio.worker import Worker

from runs.loop.temporal import connect

START_SECONDS_MAX = 120.0


@contextmanager
def working(make_workers: Callable[[Client], list[Worker]]) -> Iterator[None]:
    """These workers run during the block; raises what kept them from starting."""
    started: Future[None] = Future()
    ended = threading.Event()

    def work() -> None:
        try:
            asyncio.run(_work(make_workers, started, ended))
        except BaseException as error:
            if not started.done():
                started.set_exception(error)
            raise

    thread = threading.Thread(target=work, name="bench-workers")
    thread.start()
    try:
        started.result(START_SECONDS_MAX)
        yield
    finally:
        ended.set()
        thread.join()


async def _work(make_workers: Callable[[Client], list[Worker]], started: Future[None], ended: threading.Event) -> None:
    client = await connect()
    async with AsyncExitStack() as running:
        for worker in make_workers(client):
            await running.enter_async_context(worker)
        started.set_result(None)
        await asyncio.to_thread(ended.wait)

"""Writers of the benchmarks in processes of their own, as several web and worker processes write."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier

from django.db import connections

START_SECONDS_MAX = 60.0  # until the last of them is ready on a busy machine
FORK = multiprocessing.get_context("fork")  # nothing has to be loaded again


def rate(work: Callable[[float], int], writers: int, seconds: float) -> float:
    """How much of `work` all writers did per second; each gets the time until which to go on, and says how much it did.

    Must be called before the process has threads of its own.
    """
    connections["default"].close()
    connections["default"].close_pool()  # type: ignore[attr-defined]
    together, told = FORK.Barrier(writers), FORK.Queue()
    processes = [FORK.Process(target=_write, args=[work, seconds, together, told]) for _ in range(writers)]
    for process in processes:
        process.start()
    try:
        total: float = sum(told.get(timeout=START_SECONDS_MAX + seconds * 2) for _ in processes)
        return total
    finally:
        for process in processes:
            process.join(START_SECONDS_MAX)


def _write(work: Callable[[float], int], seconds: float, together: Barrier, told: Queue[float]) -> None:
    work(0.0)  # connects
    together.wait(START_SECONDS_MAX)  # nobody measures while others still begin
    began = time.perf_counter()
    done = work(began + seconds)
    told.put(done / (time.perf_counter() - began))
    connections["default"].close()
    connections["default"].close_pool()  # type: ignore[attr-defined]

"""Processes of the crash matrix: each is forked from a loaded one, carries calls across the real boundary, and some
die on the way by SIGKILL. Imported first of all in the process that they are forked from.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from typing import Any, cast
from uuid import UUID

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "kernel_project.settings")
django.setup(set_prefix=False)

from django.conf import settings  # noqa: E402

from kernel_project.drill import adapters  # noqa: E402,F401  registers the tools; Django had to be ready first
from kernel_project.primitives.clock import now  # noqa: E402
from runs.boundary import perform, reconcile  # noqa: E402
from runs.boundary.effects import sandbox as _sandbox  # noqa: E402,F401  loaded once, for all forks
from runs.models import Operation  # noqa: E402

VICTIMS_AT_ONCE = 3  # on two cores: one of them always waits for a disk
VICTIM_SECONDS_MAX = 120.0  # one call; then its process is killed, and reported as hung
RESCUE_SECONDS_MAX = 900.0  # all calls of one cell
CALLS_AT_ONCE = 4  # of one process
PROBE_ROUNDS_MAX = 3  # looks for calls that a first probe could not tell of, because their deadline was to come
DEADLINE_GRACE_SECONDS = 0.2  # the database's clock judges, and ours waits


class Stuck(Exception):
    """A process of the matrix did not end in time, or ended with an error of its own."""


def forking() -> ForkServerContext:
    """Where processes are forked from: a loaded process with neither threads nor connections."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


@dataclass(frozen=True)
class Nursery:
    """Starts the processes; `environment` is what they need to know beside ours."""

    environment: Mapping[str, str]
    context: ForkServerContext = field(default_factory=forking)

    def were_killed(self, operation_ids: Sequence[UUID], faults: str) -> list[bool]:
        """Perform each call in a process of its own that dies at the armed point, a few at a time.

        False: the process came to its end without passing it.
        """
        codes: dict[UUID, int | None] = {}
        waiting, running = deque(operation_ids), dict[int, tuple[UUID, BaseProcess]]()
        while waiting or running:
            while waiting and len(running) < VICTIMS_AT_ONCE:
                process = self._start(_performs, [waiting[0]], faults)
                running[process.sentinel] = waiting.popleft(), process
            for sentinel in _ended(list(running.values()), VICTIM_SECONDS_MAX):
                operation_id, process = running.pop(sentinel)
                codes[operation_id] = _exit_code(process)
        if wrong := set(codes.values()) - {0, -signal.SIGKILL}:
            raise Stuck(f"processes that were to be killed ended with {wrong}")
        return [codes[operation_id] != 0 for operation_id in operation_ids]

    def rescue(self, operation_ids: Sequence[UUID]) -> None:
        """Deliver the calls again, in a process that nothing happens to, and look for those that can be looked for."""
        process = self._start(_recovers, operation_ids, "")
        _ended([(operation_ids[0], process)], RESCUE_SECONDS_MAX)
        if (code := _exit_code(process)) != 0:
            raise Stuck(f"the second delivery ended with {code}")

    def _start(self, target: Callable[..., None], *args: Any) -> BaseProcess:
        """Not from several threads: the library collects ended processes of all threads at each start."""
        process = self.context.Process(target=target, args=(self.environment, *args))
        process.start()
        return process


def _ended(running: Sequence[tuple[UUID, BaseProcess]], seconds_max: float) -> list[int]:
    """The sentinels of processes that have ended; none within the time ends all of them, and the matrix."""
    if ready := wait([process.sentinel for _, process in running], seconds_max):
        return cast("list[int]", ready)
    for _, process in running:
        process.kill()
    raise Stuck(f"no process of operations {[str(id_) for id_, _ in running]} ended within {seconds_max:.0f} s")


def _exit_code(process: BaseProcess) -> int | None:
    process.join()
    code = process.exitcode
    process.close()
    return code


def _performs(environment: Mapping[str, str], operation_ids: Sequence[UUID], faults: str) -> None:
    """In a process of its own: perform these calls as the activities of a worker do."""
    os.environ.update(environment)
    settings.KERNEL_FAULTS = faults
    asyncio.run(_perform(operation_ids))


def _recovers(environment: Mapping[str, str], operation_ids: Sequence[UUID], faults: str) -> None:
    """The same, and then what beat does for calls that are uncertain and can be looked for."""
    _performs(environment, operation_ids, faults)
    for _ in range(PROBE_ROUNDS_MAX):
        unclear = Operation.objects.filter(id__in=operation_ids, state=Operation.State.UNCERTAIN, probes=True)
        rows = list(unclear.values_list("id", "deadline_at"))
        if not rows:
            return
        latest = max((deadline - now()).total_seconds() for _, deadline in rows if deadline)
        time.sleep(max(0.0, latest) + DEADLINE_GRACE_SECONDS)
        for operation_id, _ in rows:
            reconcile.probe_now(operation_id)
        asyncio.run(_perform([operation_id for operation_id, _ in rows]))


async def _perform(operation_ids: Sequence[UUID]) -> None:
    places = asyncio.Semaphore(CALLS_AT_ONCE)

    async def one(operation_id: UUID) -> None:
        async with places:
            await perform.perform(operation_id, lambda *_: None)

    await asyncio.gather(*map(one, operation_ids))

"""The baseline of the crash matrix: the same ledger, called from a bare Temporal activity with default retries.

All calls of a cell are in flight in one worker; when each has come to the named place, the worker is killed: one kill
for each call. Then a second worker does what Temporal tells it to.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

from django.conf import settings
from temporalio import activity
from temporalio.client import Client
from temporalio.worker import Worker

from kernel_project.drill.ledger_process import LedgerClient, LedgerProcess
from kernel_project.drill.naive_workflow import NaivePayment

PLACES = ("before_the_effect", "after_the_effect")
BEAT_SECONDS = 0.5
DEATH_SECONDS_MAX = 120.0
RESULTS_SECONDS_MAX = 300.0


@dataclass
class Activity:
    """The activity of one worker; dies with it when `expected` calls have come to `place`."""

    place: str
    expected: int
    arrived: int = 0

    @activity.defn(name="pay")
    async def pay(self, text: str) -> str:
        beats = asyncio.create_task(_beat())
        try:
            await self._pass("before_the_effect")
            answer = await asyncio.to_thread(LedgerClient().book, "opaque", text, "")
            await self._pass("after_the_effect")
        finally:
            beats.cancel()
        return answer

    async def _pass(self, place: str) -> None:
        if place != self.place:
            return
        self.arrived += 1
        if self.arrived == self.expected:
            os.kill(os.getpid(), signal.SIGKILL)
        await asyncio.sleep(DEATH_SECONDS_MAX)


async def _beat() -> None:
    while True:
        activity.heartbeat()
        await asyncio.sleep(BEAT_SECONDS)


def play(kills: int) -> list[dict[str, Any]]:
    """One row for each place, in the form of the matrix's own rows."""
    with TemporaryDirectory(prefix="agent-kernel-ledger-") as folder, LedgerProcess(Path(folder) / "ledger") as ledger:
        return [asyncio.run(_cell(place, kills, ledger)) for place in PLACES]


async def _cell(place: str, kills: int, ledger: LedgerProcess) -> dict[str, Any]:
    client = await Client.connect(settings.TEMPORAL_ADDRESS, namespace=settings.TEMPORAL_NAMESPACE)
    queue = f"naive-{uuid4().hex[:8]}"
    texts = [f"{queue}-{number}" for number in range(kills)]
    handles = [await client.start_workflow(NaivePayment.run, text, id=text, task_queue=queue) for text in texts]
    first = _start(queue, place, kills, ledger.environment())
    await asyncio.to_thread(first.join, DEATH_SECONDS_MAX)
    died = first.exitcode == -signal.SIGKILL
    second = _start(queue, "", 0, ledger.environment())
    try:
        async with asyncio.timeout(RESULTS_SECONDS_MAX):
            answers = await asyncio.gather(*(handle.result() for handle in handles))
    finally:
        second.kill()
        second.join()
    counts = ledger.counts()
    return {
        "adapter": "bare Temporal activity", "fault_point": place, "kills": kills if died else 0,
        "repeated_effects": sum(max(0, counts[text] - 1) for text in texts),
        "uncertain": 0, "reported_success": len(answers),
    }  # fmt: skip


def _start(queue: str, place: str, expected: int, environment: Mapping[str, str]) -> Any:
    process = multiprocessing.get_context("spawn").Process(
        target=_work, args=(settings.TEMPORAL_ADDRESS, settings.TEMPORAL_NAMESPACE, queue, place, expected, environment)
    )
    process.start()
    return process


def _work(address: str, namespace: str, queue: str, place: str, expected: int, environment: Mapping[str, str]) -> None:
    """A worker in a process of its own, until it is killed."""
    os.environ.update(environment)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # the library logs to standard output, which is the report's
    asyncio.run(_serve(address, namespace, queue, Activity(place, expected)))


async def _serve(address: str, namespace: str, queue: str, work: Activity) -> None:
    client = await Client.connect(address, namespace=namespace)
    places = max(work.expected, 100)
    async with Worker(
        client, task_queue=queue, workflows=[NaivePayment], activities=[work.pay], max_concurrent_activities=places
    ):
        await asyncio.Event().wait()

"""The Temporal worker of the kernel: runs workflows and activities until it is told to stop, then drains."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

from django.conf import settings
from temporalio.client import Client
from temporalio.worker import Worker
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from kernel_project.primitives import traces
from runs.boundary import live, sandbox_upkeep
from runs.boundary.effects import python
from runs.boundary.mcp_pool import close_sessions
from runs.boundary.models import port
from runs.loop import builds, queues
from runs.loop.activities import ACTIVITIES, perform, think
from runs.loop.queues import Role
from runs.loop.temporal import connect
from runs.loop.workflows import AgentRun

logger = logging.getLogger(__name__)

DRAIN = timedelta(seconds=20)  # activities that are under way at a stop have this long
ACTIVITIES_MAX = 100  # at once
# A cancel comes back with a heartbeat, by default only every 8 s; it must reach a running command within 2 s.
HEARTBEAT_THROTTLE = timedelta(seconds=1)
TAKEN: Mapping[Role, Sequence[Callable[..., Any]]] = {
    "runs": ACTIVITIES,
    "model": (think,),
    "tools": (perform,),
    "sandbox": (perform,),
}
CONNECT_TRIES_MAX = 150
CONNECT_DELAY_SECONDS = 2.0  # between tries: five minutes in all, then the process ends and is started again


def workflow_runner() -> SandboxedWorkflowRunner:
    """The sandbox that keeps workflows deterministic. Our own modules pass through it."""
    restrictions = SandboxRestrictions.default.with_passthrough_modules("runs", "pydantic", "pydantic_core")
    return SandboxedWorkflowRunner(restrictions=restrictions)


def make_worker(client: Client, task_queue: str, role: Role = "runs", **options: Any) -> Worker:
    """A worker as production runs it; tests and benches make theirs here too, with `options` of their own.

    That of runs takes everything that comes to its queue; the others take the calls that theirs is for.
    """
    python.load(settings.KERNEL_TOOL_MODULES)
    usual: dict[str, Any] = {
        "workflow_runner": workflow_runner(),
        "graceful_shutdown_timeout": DRAIN,
        "max_concurrent_activities": ACTIVITIES_MAX,
        "max_heartbeat_throttle_interval": HEARTBEAT_THROTTLE,
        "deployment_config": builds.config(),
    }
    workflows = [AgentRun] if role == "runs" else []
    return Worker(client, task_queue=task_queue, workflows=workflows, activities=TAKEN[role], **usual | options)


async def work(roles: Sequence[Role] = queues.ROLES) -> None:
    """Work until SIGTERM or SIGINT, for these kinds of work where each has a queue of its own, else for all."""
    traces.begin(settings.TRACES_URL, "worker")
    client = await _client()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    served: Sequence[Role] = roles if settings.KERNEL_SEPARATE_QUEUES else ("runs",)
    async with sandbox_upkeep.kept_up(), AsyncExitStack() as running:
        workers = [make_worker(client, queues.name(role), role) for role in served]
        for worker in workers:
            await running.enter_async_context(worker)
        logger.info("worker ready on task queue %s", ", ".join(queues.name(role) for role in served))
        await stop.wait()
        logger.info("worker stopping; waiting for activities at most %s", DRAIN)
        await asyncio.gather(*(worker.shutdown() for worker in workers))  # at once: none takes more work meanwhile
    await close_sessions()
    await port.aclose()
    await live.aclose()
    traces.end()


async def _client() -> Client:
    for _ in range(CONNECT_TRIES_MAX):
        try:
            return await connect()
        except RuntimeError as error:
            logger.warning("Temporal at %s does not answer: %s", settings.TEMPORAL_ADDRESS, error)
            await asyncio.sleep(CONNECT_DELAY_SECONDS)
    raise SystemExit(f"Temporal at {settings.TEMPORAL_ADDRESS} cannot be reached")

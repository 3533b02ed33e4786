"""`manage.py bench runs`: runs with all intents and events, beside a bare Temporal workflow on the same server."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from uuid import UUID

from django.conf import settings
from temporalio.client import Client
from temporalio.worker import Worker

from kernel_project.bench import Figure
from kernel_project.primitives import ids
from kernel_project.primitives.canonical import canonical_json, sha256_hex
from runs.bench_wall_time import where_the_time_goes
from runs.bench_worker import working
from runs.bench_workflow import Bare, nothing
from runs.boundary.contracts import Dispatch
from runs.boundary.effects import python
from runs.boundary.threads import in_thread
from runs.contracts import AgentDefinition
from runs.loop import starts
from runs.loop.temporal import connect
from runs.models import Agent, AgentVersion, Project, Run, Tool

WARM_UPS = 3
ALONE_ROUNDS = 15  # alternating, so that a noisy machine disturbs both alike
AT_ONCE = 30
AT_ONCE_ROUNDS = 3
RUN_SECONDS_MAX = 120.0
QUEUE, BARE_QUEUE = "bench-runs", "bench-bare"
SCRIPT = "runs/bench_runs.yaml"
TOOL = "bench_note"
SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}

One = Callable[[Client], Awaitable[None]]


def runs() -> list[Figure]:
    """Ten turns of one model and one tool call, alone and thirty at a time."""
    _register()
    with working(_workers):
        alone, at_once, spent = asyncio.run(_measure())
    return [
        Figure(
            "ratio_to_bare_temporal", alone["kernel"] / alone["bare"], "ratio", at_most=1.0,
            beside={"kernel_ms": alone["kernel"] * 1000, "bare_ms": alone["bare"] * 1000},
        ),
        Figure(
            "throughput_ratio_to_bare", at_once["kernel"] / at_once["bare"], "ratio", at_least=0.8,
            beside={"kernel_runs_per_s": at_once["kernel"], "bare_runs_per_s": at_once["bare"]},
        ),
        Figure(
            "wall_time_of_a_run", sum(spent.values()), "ms", beside=spent,
            about="the parts of one run alone, means; a local tool runs within the workflow's tasks",
        ),
    ]  # fmt: skip


def _note(_: Dispatch, text: str) -> str:
    """Keep a note."""
    return f"noted {text}"


def _register() -> None:
    """A project with one agent and one tool, as `load_agents` would write them."""
    python.register(TOOL, input_schema=SCHEMA)(_note)
    project, _ = Project.objects.get_or_create(slug="bench", defaults={"name": "Benchmarks"})
    Tool.objects.get_or_create(
        project=project, name=TOOL,
        defaults={
            "kind": "python", "remote_name": TOOL, "exposed_name": TOOL, "input_schema": SCHEMA, "effect": "write",
            "definition_digest": sha256_hex(TOOL.encode()), "idempotent_for_seconds": 3600,
            "configuration": {"local": True},
        },
    )  # fmt: skip
    agent, _ = Agent.objects.get_or_create(project=project, name="bench")
    definition = AgentDefinition(model=f"scripted:{SCRIPT}", tools=(TOOL,)).canonical()
    digest = sha256_hex(canonical_json(definition).encode())
    AgentVersion.objects.get_or_create(
        agent=agent, version=1, defaults={"definition": definition, "digest": digest, "created_by": "bench"}
    )


def _workers(client: Client) -> list[Worker]:
    """The kernel's and the bare one, in the same thread and loop."""
    from runs.loop.worker import make_worker

    bare = Worker(client, task_queue=BARE_QUEUE, workflows=[Bare], activities=[nothing])
    return [make_worker(client, QUEUE), bare]


async def _measure() -> tuple[dict[str, float], dict[str, float], dict[str, float]]:
    """Seconds of one run alone (the median), runs per second at thirty at a time, and where the time of one goes."""
    settings.TEMPORAL_TASK_QUEUE = QUEUE
    client = await connect()
    both: dict[str, One] = {"kernel": _kernel_run, "bare": _bare_run}
    for one in list(both.values()) * WARM_UPS:
        await one(client)
    alone: dict[str, list[float]] = {name: [] for name in both}
    for _ in range(ALONE_ROUNDS):
        for name, one in both.items():
            alone[name].append(await _seconds(one(client)))
    spent = await where_the_time_goes(client, await in_thread(_latest, ALONE_ROUNDS))
    rates: dict[str, list[float]] = {name: [] for name in both}
    for _ in range(AT_ONCE_ROUNDS):
        for name, one in both.items():
            together = asyncio.gather(*[one(client) for _ in range(AT_ONCE)])
            rates[name].append(AT_ONCE / await _seconds(together))
    return (
        {name: statistics.median(seconds) for name, seconds in alone.items()},
        {name: statistics.median(found) for name, found in rates.items()},
        spent,
    )


def _latest(count: int) -> list[UUID]:
    return list(Run.objects.filter(project_id="bench").order_by("-id").values_list("id", flat=True)[:count])


async def _seconds(work: Awaitable[object]) -> float:
    began = time.perf_counter()
    await asyncio.wait_for(work, RUN_SECONDS_MAX)
    return time.perf_counter() - began


async def _kernel_run(client: Client) -> None:
    """As the API starts it: the row, then Temporal; then wait for its end."""
    asked = starts.StartRequest(project="bench", agent="bench", input="Take ten notes.", owner="bench")
    started = await in_thread(starts.start, asked)
    ended = await client.get_workflow_handle(ids.workflow_id(started.run.id), result_type=str).result()
    assert ended == Run.State.COMPLETED, f"the run {started.run.id} {ended}"


async def _bare_run(client: Client) -> None:
    await client.execute_workflow(Bare.run, id=f"bare-{ids.new_id()}", task_queue=BARE_QUEUE)

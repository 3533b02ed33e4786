"""`manage.py bench long`: one run of 1,000 calls and a 20 MB result, and how long its histories get."""

from __future__ import annotations

import asyncio
import time
from uuid import UUID

from django.conf import settings
from temporalio.client import Client
from temporalio.worker import Worker

from kernel_project.bench import Figure
from kernel_project.primitives import ids
from kernel_project.primitives.canonical import canonical_json, sha256_hex
from runs.bench_worker import working
from runs.boundary.contracts import Dispatch
from runs.boundary.effects import python
from runs.boundary.threads import in_thread
from runs.contracts import AgentDefinition, Limits
from runs.loop import starts
from runs.loop.temporal import connect
from runs.models import Agent, AgentVersion, Operation, Project, Run, Tool

CALLS = 1_000  # as many as the script makes
HISTORY_EVENTS_MAX = 10_000
HISTORY_MB_MAX = 10
RUN_SECONDS_MAX = 1_800.0
QUEUE = "bench-long"
SCRIPT = "runs/bench_long.yaml"
TOOL = "bench_fetch"
SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}


def long() -> list[Figure]:
    """A run whose conversation, result and number of calls are beyond what one execution or one request could hold."""
    _register()
    with working(_workers):
        run_id, seconds, histories = asyncio.run(_measure())
    largest = max(size for _, size in histories) / 2**20
    done = Operation.objects.filter(run_id=run_id, position__gte=1, state=Operation.State.SUCCEEDED).count()
    beside = {"executions": float(len(histories)), "run_seconds": seconds}
    return [
        Figure("calls_completed", done, "calls", at_least=CALLS, beside=beside),
        Figure("longest_history_events", max(one for one, _ in histories), "events", at_most=HISTORY_EVENTS_MAX),
        Figure("largest_history_mb", largest, "MB", at_most=HISTORY_MB_MAX),
    ]


def _fetch(_: Dispatch, text: str) -> str:
    """So many bytes."""
    return "x" * int(text)


def _register() -> None:
    python.register(TOOL, input_schema=SCHEMA, effect="read")(_fetch)
    project, _ = Project.objects.get_or_create(slug="bench", defaults={"name": "Benchmarks"})
    values = {
        "kind": "python", "remote_name": TOOL, "exposed_name": TOOL, "input_schema": SCHEMA, "effect": "read",
        "definition_digest": sha256_hex(TOOL.encode()),
    }  # fmt: skip
    Tool.objects.get_or_create(project=project, name=TOOL, defaults=values)
    agent, _ = Agent.objects.get_or_create(project=project, name="bench-long")
    limits = Limits(turns_max=CALLS + 1, tool_calls_max=CALLS + 1)
    definition = AgentDefinition(model=f"scripted:{SCRIPT}", tools=(TOOL,), limits=limits).canonical()
    kept = {"definition": definition, "digest": sha256_hex(canonical_json(definition).encode()), "created_by": "bench"}
    AgentVersion.objects.get_or_create(agent=agent, version=1, defaults=kept)


def _workers(client: Client) -> list[Worker]:
    from runs.loop.worker import make_worker

    return [make_worker(client, QUEUE)]


async def _measure() -> tuple[UUID, float, list[tuple[int, int]]]:
    settings.TEMPORAL_TASK_QUEUE = QUEUE
    client = await connect()
    began = time.perf_counter()
    asked = starts.StartRequest(project="bench", agent="bench-long", input="Fetch.", owner="bench")
    run = (await in_thread(starts.start, asked)).run
    workflow_id = ids.workflow_id(run.id)
    ended = await asyncio.wait_for(client.get_workflow_handle(workflow_id, result_type=str).result(), RUN_SECONDS_MAX)
    seconds = time.perf_counter() - began
    assert ended == Run.State.COMPLETED, f"the run {run.id} {ended}"
    return run.id, seconds, await _histories(client, workflow_id)


async def _histories(client: Client, workflow_id: str) -> list[tuple[int, int]]:
    """Events and bytes of each execution, as Temporal counts them, the newest first."""
    found: list[tuple[int, int]] = []
    run_id = (await client.get_workflow_handle(workflow_id).describe()).run_id
    while run_id:
        handle = client.get_workflow_handle(workflow_id, run_id=run_id)
        described = (await handle.describe()).raw_description.workflow_execution_info
        found.append((described.history_length, described.history_size_bytes))
        async for event in handle.fetch_history_events(page_size=1):
            run_id = event.workflow_execution_started_event_attributes.continued_execution_run_id
            break
    return found

"""What the boundary adds to a call: dispatch and settle with their events, beside the bare effect and a bare commit.

Used by `manage.py bench operations` only.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence
from uuid import UUID, uuid4

from django.db import connection, transaction
from django.db.models.functions import Now

from kernel_project.bench import Figure
from kernel_project.primitives.canonical import canonical_bytes, sha256_hex
from runs.boundary import artifacts, intents, perform
from runs.boundary.contracts import Dispatch
from runs.boundary.effects import python
from runs.boundary.intents import Wanted
from runs.contracts import AgentDefinition
from runs.models import Agent, AgentVersion, Artifact, Project, Run, Tool

OPERATIONS = 1_000
WARM_UP = 50
CALLS_PER_TURN = 10
TURNS_PER_RUN = 10
COMMITS = 200
TOOL = "bench-write"
SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}}


@python.register(TOOL, input_schema=SCHEMA, effect="write", idempotent_for_seconds=3600)
async def effect(_: Dispatch, text: str) -> str:
    """Does nothing, at once."""
    return text


def bench_operations() -> list[Figure]:
    """Sequential calls of a write with a key, as one run makes them: what is measured is all but the effect."""
    proposed = _proposed(WARM_UP + OPERATIONS)
    taken, bare = asyncio.run(_perform_all(proposed))
    overhead = [(whole - bare) * 1_000 for whole in taken[WARM_UP:]]
    beside = {"bare_effect_p50": bare * 1_000, "bare_commit_p50": _bare_commit_seconds() * 1_000}
    cuts = statistics.quantiles(overhead, n=20)
    return [
        Figure("p50_ms", statistics.median(overhead), "ms", at_most=3, beside=beside),
        Figure("p95_ms", cuts[-1], "ms", at_most=8),
    ]


async def _perform_all(operation_ids: Sequence[UUID]) -> tuple[list[float], float]:
    taken = []
    for operation_id in operation_ids:
        started = time.perf_counter()
        settled = await perform.perform(operation_id, lambda *_: None)
        taken.append(time.perf_counter() - started)
        assert settled.state == "succeeded", settled
    return taken, await _bare_effect_seconds()


async def _bare_effect_seconds() -> float:
    function = python.load([])[TOOL].function
    times = []
    for _ in range(OPERATIONS):
        started = time.perf_counter()
        await function(None, text="x")
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def _bare_commit_seconds() -> float:
    """One commit of one small row: what the disk and the server charge, whoever asks."""
    times, run_id = [], Run.objects.values_list("id", flat=True)[0]
    for number in range(COMMITS):
        started = time.perf_counter()
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("UPDATE runs_run SET waiting_for = %s WHERE id = %s", [str(number), run_id])
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def _proposed(count: int) -> list[UUID]:
    project = Project.objects.create(slug=f"bench-{uuid4().hex[:8]}", name="bench")
    tool = Tool.objects.create(
        project=project, kind="python", name=TOOL, remote_name=TOOL, exposed_name=TOOL, input_schema=SCHEMA,
        definition_digest=sha256_hex(canonical_bytes(SCHEMA)), effect="write", idempotent_for_seconds=3600,
    )  # fmt: skip
    definition = AgentDefinition(model="scripted:none.yaml", tools=(tool.name,)).canonical()
    version = AgentVersion.objects.create(
        agent=Agent.objects.create(project=project, name="bench"), version=1, definition=definition,
        digest=sha256_hex(canonical_bytes(definition)), created_by="bench",
    )  # fmt: skip
    found: list[UUID] = []
    while len(found) < count:
        found += _run(version, project)
    return found[:count]


def _run(version: AgentVersion, project: Project) -> list[UUID]:
    kept = artifacts.stage(b"bench")
    run = Run.objects.create(
        project=project, agent_version=version, state=Run.State.RUNNING, started_at=Now(), started_by="bench",
        input_digest=kept.digest,
    )  # fmt: skip
    artifacts.claim(run.id, Artifact.Kind.INPUT, [kept])
    run = Run.objects.select_related("agent_version__agent").get(id=run.id)
    made: list[UUID] = []
    for turn in range(1, TURNS_PER_RUN + 1):
        calls = [Wanted(TOOL, {"text": f"{turn}/{place} " + "x" * 200}) for place in range(CALLS_PER_TURN)]
        drafts = intents.draft(run, turn, calls)
        with transaction.atomic():
            intents.propose(run, drafts)
        made += [one.operation.id for one in drafts]
    return made

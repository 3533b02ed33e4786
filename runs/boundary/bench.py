"""What the boundary adds to a call: dispatch and settle with their events, beside the bare effect and a bare commit.

Used by `manage.py bench operations` only.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence
from typing import Any
from uuid import UUID, uuid4

from django.db import connection, transaction
from django.db.models.functions import Now

from approvals import policy
from approvals.contracts import Rule
from kernel_project.bench import Figure
from kernel_project.primitives.canonical import canonical_bytes, sha256_hex
from runs.boundary import artifacts, intents, perform
from runs.boundary.effects import python
from runs.boundary.intents import Wanted
from runs.contracts import AgentDefinition
from runs.models import Agent, AgentVersion, Artifact, Project, Run, Tool

OPERATIONS = 500  # of each kind
WARM_UP = 50
CALLS_PER_TURN = 10
TURNS_PER_RUN = 9
COMMITS = 200
SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}}
KEYED = "bench-keyed"
# A write with a key and a read commit twice; a write that nobody could recognise commits its mark as well.
KINDS: dict[str, dict[str, Any]] = {
    KEYED: {"effect": "write", "idempotent_for_seconds": 3600},
    "bench-opaque": {"effect": "write"},
    "bench-read": {"effect": "read"},
}


async def effect(_: Any, text: str) -> str:
    """Does nothing, at once."""
    return text


for _name, _declared in KINDS.items():
    python.register(_name, input_schema=SCHEMA, **_declared)(effect)


def bench_operations() -> list[Figure]:
    """Sequential calls as one run makes them, the kinds in turn: what is measured is all but the effect.

    The bars are for the write with a key; `opaque_` and `read_` are told beside them.
    """
    proposed = _proposed(WARM_UP + OPERATIONS)
    taken, bare = asyncio.run(_perform_all(proposed))
    beside = {"bare_effect_p50": bare * 1_000, "bare_commit_p50": _bare_commit_seconds() * 1_000}
    return [figure for tool in KINDS for figure in _figures(tool, taken[tool][WARM_UP:], bare, beside)]


def _figures(tool: str, taken: Sequence[float], bare: float, beside: dict[str, float]) -> list[Figure]:
    overhead = [(whole - bare) * 1_000 for whole in taken]
    p50, p95 = statistics.median(overhead), statistics.quantiles(overhead, n=20)[-1]
    if tool == KEYED:
        about = "a write with a key"
        return [
            Figure("p50_ms", p50, "ms", at_most=3, beside=beside, about=about),
            Figure("p95_ms", p95, "ms", at_most=8, beside=beside, about=about),
        ]
    prefix = tool.removeprefix("bench-")
    return [Figure(f"{prefix}_{name}_ms", value, "ms", beside=beside) for name, value in (("p50", p50), ("p95", p95))]


async def _perform_all(calls: Sequence[tuple[str, UUID]]) -> tuple[dict[str, list[float]], float]:
    taken: dict[str, list[float]] = {tool: [] for tool in KINDS}
    for tool, operation_id in calls:
        started = time.perf_counter()
        settled = await perform.perform(operation_id, lambda *_: None)
        taken[tool].append(time.perf_counter() - started)
        assert settled.state == "succeeded", settled
    return taken, await _bare_effect_seconds()


async def _bare_effect_seconds() -> float:
    times = []
    for _ in range(OPERATIONS):
        started = time.perf_counter()
        await effect(None, text="x")
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


def _proposed(count: int) -> list[tuple[str, UUID]]:
    """So many calls of each kind, the kinds in turn, so that what disturbs the machine disturbs all of them."""
    project = Project.objects.create(slug=f"bench-{uuid4().hex[:8]}", name="bench")
    for tool, declared in KINDS.items():
        Tool.objects.create(
            project=project, kind="python", name=tool, remote_name=tool, exposed_name=tool, input_schema=SCHEMA,
            definition_digest=sha256_hex(canonical_bytes(SCHEMA)), **declared,
        )  # fmt: skip
    policy.save(project.slug, Rule(name="all", answer="allow"), "bench")
    definition = AgentDefinition(model="scripted:none.yaml", tools=tuple(KINDS)).canonical()
    version = AgentVersion.objects.create(
        agent=Agent.objects.create(project=project, name="bench"), version=1, definition=definition,
        digest=sha256_hex(canonical_bytes(definition)), created_by="bench",
    )  # fmt: skip
    made: dict[str, list[UUID]] = {tool: [] for tool in KINDS}
    while len(made[KEYED]) < count:
        for tool, operation_id in _run(version, project):
            made[tool].append(operation_id)
    return [(tool, made[tool][number]) for number in range(count) for tool in KINDS]


def _run(version: AgentVersion, project: Project) -> list[tuple[str, UUID]]:
    """One run's turns, each with calls of one kind."""
    kept = artifacts.stage(b"bench")
    run = Run.objects.create(
        project=project, agent_version=version, state=Run.State.RUNNING, started_at=Now(), started_by="bench",
        input_digest=kept.digest,
    )  # fmt: skip
    artifacts.claim(run.id, Artifact.Kind.INPUT, [kept])
    run = Run.objects.select_related("agent_version__agent").get(id=run.id)
    made: list[tuple[str, UUID]] = []
    for turn in range(1, TURNS_PER_RUN + 1):
        tool = list(KINDS)[turn % len(KINDS)]
        calls = [Wanted(tool, {"text": f"{turn}/{place} " + "x" * 200}) for place in range(CALLS_PER_TURN)]
        drafts = intents.draft(run, turn, calls)
        with transaction.atomic():
            intents.propose(run, drafts)
        made += [(tool, one.operation.id) for one in drafts]
    return made

"""`manage.py bench start_api` and `bench api`: the JSON API over HTTP as clients use it, with the whole stack running.

Requests leave at fixed times, whether or not the earlier ones were answered, and are timed from the moment at which
they should have left: a server that stalls is charged for all who would have come meanwhile. Whoever measures shares
the machine with whoever is measured.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from urllib.parse import urlsplit
from uuid import UUID

import httpx2
from django.conf import settings
from django.db import transaction
from temporalio.client import Client

from kernel_project.bench import Figure
from kernel_project.primitives.canonical import canonical_json, sha256_hex
from kernel_project.primitives.ids import new_id
from outbox import services as outbox
from runs import keys
from runs.bench_followers import Followed, follow_all, web_process
from runs.bench_workflow import Bare
from runs.boundary import artifacts
from runs.boundary.threads import in_thread
from runs.contracts import AgentDefinition
from runs.loop import endings
from runs.loop.contracts import FinishInput
from runs.loop.temporal import connect
from runs.loop.turns import begin_run, run_event
from runs.models import Agent, AgentVersion, Artifact, Project, Run

PROJECT = AGENT = "bench-api"
SCRIPT = "runs/bench_api.yaml"
STARTS_PER_S = 10.0
START_SECONDS = 30.0
WARM_UPS = 20
BARE_STARTS = 100
BARE_QUEUE = "bench-nobody"  # a start is acknowledged before any worker has seen it
BARE_LASTS = timedelta(seconds=30)
READS_PER_S = 20.0
READ_SECONDS = 30.0
SEED_RUNS = 50
SEED_SECONDS_MAX = 120.0
POLL_SECONDS = 0.5
REQUEST_SECONDS_MAX = 30.0
FOLLOWERS = 500
FOLLOWED_RUNS = 10
FOLLOWED_EVENTS = 10  # of each run, one a second
THREADS_MAX = 100  # of the web process; pools have a size, whatever the number of followers
PATHS = {
    "run": "/runs/{run}",
    "runs": "/runs?limit=50",
    "events": "/runs/{run}/events",
    "operations": "/runs/{run}/operations",
    "approvals": "/approvals?state=waiting",
    "lag": "/lag",
}

Call = Callable[[httpx2.AsyncClient, int], Awaitable[httpx2.Response]]


def start_api() -> list[Figure]:
    """Starts at ten per second, each acknowledged by Temporal, while the kernel carries the runs out."""
    version, token = _register()
    taken, bare = asyncio.run(_start_all(token))
    p50, p95 = _p50_p95(taken)
    beside = {"p50_ms": p50, "max_ms": max(taken) * 1000, "bare_temporal_start_p95_ms": _p50_p95(bare)[1]}
    about = f"{len(taken)} starts at {STARTS_PER_S:g}/s, agent {version.agent.name}"
    return [Figure("p95_ms", p95, "ms", at_most=100, beside=beside, about=about)]


def api() -> list[Figure]:
    """Reads of every kind at twenty per second, and then as many open event streams as one web process should carry."""
    version, token = _register()
    taken = asyncio.run(_read_all(token))
    p50, p95 = _p50_p95([one for kind in taken.values() for one in kind])
    beside = {"p50_ms": p50, **{f"{name}_p95_ms": _p50_p95(kind)[1] for name, kind in taken.items()}}
    return [Figure("read_p95_ms", p95, "ms", at_most=20, beside=beside), *_followers(version, token)]


def _followers(version: AgentVersion, token: str) -> list[Figure]:
    runs = [_live_run(version) for _ in range(FOLLOWED_RUNS)]
    try:
        told = asyncio.run(_followed(runs, token))
    finally:
        for run in runs:
            endings.finish(FinishInput(run_id=run.id, outcome="completed"))
    p50, p95 = _p50_p95(told.delays)
    frames, alone, crowd = told.frames, told.threads_before, told.threads_during
    figures = [
        Figure("sse_followers", told.open_at_once, "lines", at_least=FOLLOWERS, beside={"frames": frames}),
        Figure("sse_frame_p95_ms", p95, "ms", beside={"p50_ms": p50}, about="from commit to the follower"),
    ]
    if crowd:
        figures.append(
            Figure("web_threads", crowd, "threads", at_most=THREADS_MAX, beside={"without_followers": alone})
        )
    return figures


def _p50_p95(seconds: Sequence[float]) -> tuple[float, float]:
    return statistics.median(seconds) * 1000, statistics.quantiles(seconds, n=20)[-1] * 1000


def _register() -> tuple[AgentVersion, str]:
    """A project with one agent, as `load_agents` would write them, and a key for this measurement."""
    project, _ = Project.objects.get_or_create(slug=PROJECT, defaults={"name": "Benchmarks"})
    agent, _ = Agent.objects.get_or_create(project=project, name=AGENT)
    definition = AgentDefinition(model=f"scripted:{SCRIPT}").canonical()
    digest = sha256_hex(canonical_json(definition).encode())
    version, _ = AgentVersion.objects.get_or_create(
        agent=agent, version=1, defaults={"definition": definition, "digest": digest, "created_by": "bench"}
    )
    scopes = ["runs:start", "runs:read", "operations:read", "approvals:read", "lag:read"]
    return version, keys.create(project=PROJECT, name="bench", scopes=scopes, by="bench")[1]


def _client(token: str) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(
        base_url=f"{settings.PUBLIC_URL}/api/v1", headers={"Authorization": f"Bearer {token}"}, trust_env=False,
        timeout=REQUEST_SECONDS_MAX, limits=httpx2.Limits(max_connections=100),
    )  # fmt: skip


async def _paced(client: httpx2.AsyncClient, call: Call, count: int, per_s: float) -> list[float]:
    """Seconds of each call, from the moment at which it was due. An answer of an error ends the measurement."""
    began = time.perf_counter()

    async def one(number: int) -> float:
        due = began + number / per_s
        await asyncio.sleep(due - time.perf_counter())
        _checked(await call(client, number))
        return time.perf_counter() - due

    return await asyncio.gather(*[one(number) for number in range(count)])


def _checked(answer: httpx2.Response) -> httpx2.Response:
    if answer.is_error:
        raise RuntimeError(
            f"{answer.request.method} {answer.request.url.path}: {answer.status_code} {answer.text[:300]}"
        )
    return answer


async def _start(client: httpx2.AsyncClient, _: int) -> httpx2.Response:
    body = {"agent": AGENT, "input": "Say that you are done."}
    return await client.post("/runs", json=body, headers={"Idempotency-Key": str(new_id())})


async def _start_all(token: str) -> tuple[list[float], list[float]]:
    temporal = await connect()
    async with _client(token) as client:
        await _paced(client, _start, WARM_UPS, STARTS_PER_S)
        taken = await _paced(client, _start, int(STARTS_PER_S * START_SECONDS), STARTS_PER_S)
    return taken, [await _bare_start(temporal) for _ in range(BARE_STARTS)]


async def _bare_start(temporal: Client) -> float:
    began = time.perf_counter()
    await temporal.start_workflow(
        Bare.run, id=f"bench-bare-{new_id()}", task_queue=BARE_QUEUE, execution_timeout=BARE_LASTS
    )
    return time.perf_counter() - began


async def _read_all(token: str) -> dict[str, list[float]]:
    async with _client(token) as client:
        runs = await _seeded(client)
        names = list(PATHS)

        async def read(client: httpx2.AsyncClient, number: int) -> httpx2.Response:
            return await client.get(PATHS[names[number % len(names)]].format(run=runs[number % len(runs)]))

        await _paced(client, read, WARM_UPS, READS_PER_S)
        taken = await _paced(client, read, int(READS_PER_S * READ_SECONDS), READS_PER_S)
    return {name: taken[place :: len(names)] for place, name in enumerate(names)}


async def _seeded(client: httpx2.AsyncClient) -> list[str]:
    """Runs that were started and carried out."""
    for number in range(SEED_RUNS):
        _checked(await _start(client, number))
    until = time.monotonic() + SEED_SECONDS_MAX
    while time.monotonic() < until:
        done = _checked(await client.get("/runs?state=completed&limit=200")).json()["items"]
        if len(done) >= SEED_RUNS:
            return [run["id"] for run in done]
        await asyncio.sleep(POLL_SECONDS)
    raise TimeoutError(f"{SEED_RUNS} runs were not carried out within {SEED_SECONDS_MAX:g} s: is there a worker?")


def _live_run(version: AgentVersion) -> Run:
    """A run that goes on for as long as it is followed: its row and its events, without a workflow."""
    body = artifacts.stage(b"bench")
    with transaction.atomic():
        run = Run.objects.create(
            project_id=PROJECT, agent_version=version, started_by="bench", input_digest=body.digest
        )
        artifacts.claim(run.id, Artifact.Kind.INPUT, [body])
        begin_run(run)
    return Run.objects.get(id=run.id)


async def _followed(runs: Sequence[Run], token: str) -> Followed:
    address = urlsplit(settings.PUBLIC_URL)
    places = [runs[number % len(runs)].id for number in range(FOLLOWERS)]
    process = web_process(address.port or 80)

    async def tell(run_id: UUID, number: int) -> None:
        run = next(run for run in runs if run.id == run_id)
        await in_thread(_tell, run, number)

    return await follow_all(address, token, places, tell, FOLLOWED_EVENTS, process)


def _tell(run: Run, number: int) -> None:
    with transaction.atomic():
        outbox.append([run_event(run, "turn.started", {"turn": number}, subject=f"bench/{number}")])

"""`manage.py bench decision`: how soon a call leaves after a person said yes, by the database's own times; and how soon
the page opens on which people say it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from uuid import UUID

from django.conf import settings
from temporalio.client import Client
from temporalio.worker import Worker

from approvals import bench as approvals_bench
from approvals import services as approvals
from approvals.contracts import Decider
from approvals.models import Approval
from kernel_project.bench import Figure
from kernel_project.primitives.canonical import canonical_json, sha256_hex
from runs.bench_worker import working
from runs.boundary.contracts import Dispatch
from runs.boundary.effects import python
from runs.contracts import AgentDefinition
from runs.loop import starts
from runs.models import Agent, AgentVersion, Operation, Project, Run, Tool

RUNS = 45
WARM_UPS = 5  # decisions that are not counted: the first ones connect
PAUSE_SECONDS = 0.5  # people decide one after the other; the rest of each run goes on meanwhile
WAIT_SECONDS_MAX = 120.0
POLL_SECONDS = 0.05
QUEUE, PROJECT, NAME = "bench-decisions", "bench-decisions", "bench_pay"
SCRIPT = "runs/bench_decisions.yaml"
SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
PERSON = Decider(name="bench", groups=frozenset(), via="command")


def decision() -> list[Figure]:
    """Runs whose one call waits for a person: each is approved, and the way from the yes to the dispatch is timed."""
    settings.TEMPORAL_TASK_QUEUE = QUEUE
    _register()
    with working(_workers):
        runs = [_start(number) for number in range(RUNS)]
        _until(lambda: Approval.objects.filter(run_id__in=runs, state=Approval.State.WAITING).count() == RUNS)
        for approval_id in list(Approval.objects.filter(run_id__in=runs).values_list("id", flat=True)):
            approvals.decide(approval_id, PROJECT, PERSON, "approve", "as the bench's approver")
            time.sleep(PAUSE_SECONDS)
        _until(lambda: not Run.objects.filter(id__in=runs, state__in=Run.LIVE).exists())
    took = _milliseconds(runs)
    return [
        Figure(
            "p95_ms", statistics.quantiles(took, n=20)[18], "ms", at_most=500,
            beside={"p50_ms": statistics.median(took), "max_ms": max(took)},
        ),
        *approvals_bench.queue(),
    ]  # fmt: skip


def _milliseconds(runs: list[UUID]) -> list[float]:
    """From the decision to the dispatch of each call, in the order of the decisions, without the first ones."""
    left = dict(Operation.objects.filter(run_id__in=runs, position=1).values_list("id", "dispatched_at"))
    granted = Approval.objects.filter(run_id__in=runs, state=Approval.State.GRANTED).order_by("decided_at")
    took: list[float] = []
    for operation_id, decided_at in granted.values_list("operation_id", "decided_at"):
        dispatched_at = left[operation_id]
        assert dispatched_at is not None, f"operation {operation_id} was approved and did not leave"
        assert decided_at is not None
        took.append((dispatched_at - decided_at).total_seconds() * 1000)
    assert len(took) == RUNS, f"{RUNS - len(took)} calls were not approved"
    return took[WARM_UPS:]


def _pay(_: Dispatch, text: str) -> str:
    """Pay, which needs a person."""
    return f"paid {text}"


def _register() -> None:
    python.register(NAME, input_schema=SCHEMA)(_pay)
    project, _ = Project.objects.get_or_create(slug=PROJECT, defaults={"name": "Decisions"})
    Tool.objects.get_or_create(
        project=project, name=NAME,
        defaults={
            "kind": "python", "remote_name": NAME, "exposed_name": NAME, "input_schema": SCHEMA, "effect": "write",
            "definition_digest": sha256_hex(NAME.encode()),
        },
    )  # fmt: skip
    agent, _ = Agent.objects.get_or_create(project=project, name="bench")
    definition = AgentDefinition(model=f"scripted:{SCRIPT}", tools=(NAME,)).canonical()
    digest = sha256_hex(canonical_json(definition).encode())
    AgentVersion.objects.get_or_create(
        agent=agent, version=1, defaults={"definition": definition, "digest": digest, "created_by": "bench"}
    )


def _start(number: int) -> UUID:
    asked = starts.StartRequest(project=PROJECT, agent="bench", input=f"Pay invoice {number}.", owner="bench-service")
    return starts.start(asked).run.id


def _until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_SECONDS_MAX
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"the runs did not get there within {WAIT_SECONDS_MAX:g} s")
        time.sleep(POLL_SECONDS)


def _workers(client: Client) -> list[Worker]:
    from runs.loop.worker import make_worker

    return [make_worker(client, QUEUE)]

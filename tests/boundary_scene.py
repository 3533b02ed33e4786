"""The scene for tests of the boundary: runs, tools and proposed operations on PostgreSQL alone, without Temporal.

Rows stay until the module is over, so each test uses a project of its own.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.models import DateTimeField, Value
from django.db.models.functions import Now
from django.test.utils import setup_databases

from approvals import services
from approvals.contracts import Decider
from kernel_project.primitives.canonical import canonical_json, sha256_hex
from outbox.models import Event
from runs.boundary import artifacts, intents, operations, perform
from runs.boundary.contracts import Dispatch, EffectResult, ProbeAnswer, ProbeVerdict
from runs.boundary.intents import Wanted
from runs.boundary.operations import Settled
from runs.boundary.threads import with_clean_connection
from runs.contracts import AgentDefinition
from runs.models import Agent, AgentVersion, Artifact, Operation, Project, Run, Tool
from tests.emptying import empty_patiently
from tests.kernel import make_tool

ANY_SCHEMA = {"type": "object"}


@pytest.fixture(scope="module")
def committed(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """A real database in which everything is committed; emptied once, after the module."""
    with django_db_blocker.unblock():
        if not connection.settings_dict["NAME"].startswith("test_"):
            setup_databases(verbosity=0, interactive=False, keepdb=True)  # no test before us was marked django_db
        yield
        empty_patiently("default")


def make_project() -> Project:
    slug = f"p-{uuid.uuid4().hex[:10]}"
    return Project.objects.create(slug=slug, name=slug)


def make_agent(project: Project, tools: Sequence[str] = ()) -> AgentVersion:
    definition = AgentDefinition(model="scripted:none.yaml", tools=tuple(tools)).canonical()
    agent = Agent.objects.create(project=project, name=f"agent-{uuid.uuid4().hex[:8]}")
    digest = sha256_hex(canonical_json(definition).encode())
    return AgentVersion.objects.create(agent=agent, version=1, definition=definition, digest=digest, created_by="test")


def make_run(project: Project, tools: Sequence[str] = (), version: AgentVersion | None = None) -> Run:
    """A run that is under way."""
    kept = artifacts.stage(b"go")
    run = Run.objects.create(
        project=project,
        agent_version=version or make_agent(project, tools),
        state=Run.State.RUNNING,
        started_at=Now(),
        started_by="starter",
        input_digest=kept.digest,
    )
    artifacts.claim(run.id, Artifact.Kind.INPUT, [kept])
    return Run.objects.select_related("agent_version__agent").get(id=run.id)


def propose(run: Run, *wanted: Wanted, turn: int = 1) -> list[Operation]:
    """Write down calls as the model asked for them."""
    drafts = intents.draft(run, turn, wanted)
    with transaction.atomic():
        intents.propose(run, drafts)
    return list(Operation.objects.filter(run=run, turn=turn, position__gte=1).order_by("position"))


@dataclass
class Outside:
    """The other side of a tool: counts effects by key, and misbehaves as told.

    Each call takes the next entry of `plan`: "answer", "effect" (then no answer), "nothing" (no effect, no answer),
    "hang" (the effect, then silence), or anything that is called with the dispatch.
    """

    plan: list[Any] = field(default_factory=list)
    keyed: bool = False
    effects: list[str] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)
    verdict: ProbeVerdict | None = None

    async def tool(self, dispatch: Dispatch, **arguments: Any) -> Any:
        self.calls.append(dispatch.attempt)
        step = self.plan.pop(0) if self.plan else "answer"
        if callable(step):
            return await step(dispatch) if asyncio.iscoroutinefunction(step) else step(dispatch)
        if step != "nothing" and not (self.keyed and dispatch.idempotency_key in self.effects):
            self.effects.append(dispatch.idempotency_key)
        match step:
            case "answer":
                return "done"
            case "hang":
                await asyncio.sleep(3600)
        raise ConnectionResetError("the line is dead")

    def probe(self, dispatch: Dispatch) -> ProbeAnswer:
        if self.verdict is not None:
            return ProbeAnswer(verdict=self.verdict)
        count = self.effects.count(dispatch.idempotency_key)
        found = {0: ProbeVerdict.ABSENT, 1: ProbeVerdict.ONE}.get(count, ProbeVerdict.MANY)
        return ProbeAnswer(verdict=found, result=EffectResult(text="found") if count == 1 else None)


@dataclass
class Scene:
    """One proposed call of one tool."""

    outside: Outside
    project: Project
    tool: Tool
    run: Run
    operation: Operation

    @property
    def id(self) -> uuid.UUID:
        return self.operation.id

    def row(self) -> Operation:
        return Operation.objects.get(id=self.operation.id)

    def another(self, run: Run | None = None, **arguments: Any) -> Operation:
        """The same call once more, by another run unless one is named."""
        other = run or make_run(self.project, [self.tool.name], self.run.agent_version)
        turn = Operation.objects.filter(run=other).count() + 1
        return propose(other, Wanted(self.tool.exposed_name, arguments or {"text": "x"}), turn=turn)[0]


KINDS: dict[str, dict[str, Any]] = {
    "read": {"effect": "read"},
    "keyed": {"effect": "write", "idempotent_for_seconds": 3600},
    "expired": {"effect": "write", "idempotent_for_seconds": 1},
    "probed": {"effect": "write", "configuration": {"absent_after_seconds": 0}},
    "opaque": {"effect": "write"},
}


def make_scene(kind: str = "opaque", plan: Sequence[Any] = (), allow: bool = True, **declared: Any) -> Scene:
    """A run with one proposed call of a tool of this kind, allowed by a policy unless `allow` is false."""
    project = make_project()
    outside = Outside(list(plan), keyed=kind in ("keyed", "expired"))
    values = {**KINDS[kind], "input_schema": ANY_SCHEMA, "timeout_seconds": 30, **declared}
    if kind == "probed":
        values["probe_function"] = outside.probe
    tool = make_tool(project, f"tool-{uuid.uuid4().hex[:8]}", outside.tool, **values)
    if allow:
        allow_all(project)
    run = make_run(project, [tool.name])
    operation = propose(run, Wanted(tool.exposed_name, {"text": "x"}))[0]
    return Scene(outside, project, tool, run, operation)


def allow_all(project: Project, **more: Any) -> None:
    rule(project, "allow", **more)


def rule(project: Project, answer: str, **more: Any) -> Any:
    from approvals import policy
    from approvals.contracts import Rule

    name = more.pop("name", f"rule-{uuid.uuid4().hex[:8]}")
    return policy.save(project.slug, Rule(name=name, answer=answer, **more), "test")[0]


def quiet(*_: Any) -> None:
    """A heartbeat that nobody hears."""


async def performed(operation_id: uuid.UUID) -> Settled:
    return await perform.perform(operation_id, quiet)


def perform_now(operation_id: uuid.UUID) -> Settled:
    """Perform in an event loop of its own."""
    return asyncio.run(performed(operation_id))


def dispatched(operation_id: uuid.UUID) -> Dispatch:
    """Dispatch, as a worker that dies right after it would."""
    step = operations.dispatch(operation_id, quiet)
    assert isinstance(step, Dispatch), step
    return step


def told(operation_id: uuid.UUID) -> list[str]:
    """What the journal says of an operation: type, and effect or verdict where there is one."""
    events = Event.objects.filter(operation_id=operation_id).order_by("sequence").values_list("envelope", flat=True)
    return [_short(json.loads(text)) for text in events]


def _short(event: dict[str, Any]) -> str:
    more = event["data"].get("effect") or event["data"].get("verdict")
    return f"{event['type']} {more}" if more else str(event["type"])


def result_of(operation: Operation) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(artifacts.read(operation.run_id, operation.result_digest))
    return found


def decider(name: str = "approver", *groups: str, **more: Any) -> Decider:
    return Decider(name=name, groups=frozenset(groups), via="api", **more)


def at_once(*works: Callable[[], Any]) -> list[Any]:
    """Do all of it at the same moment, each on a thread and connection of its own; results or exceptions, in order."""

    def guarded(work: Callable[[], Any]) -> Any:
        try:
            return with_clean_connection(work)
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(works)) as pool:
        return list(pool.map(guarded, works))


def stop_the_clock_at(monkeypatch: pytest.MonkeyPatch, moment: datetime) -> None:
    """Let the clock by which requests are judged stand still at this very moment."""
    monkeypatch.setattr(services, "_clock", lambda: Value(moment, DateTimeField()))


def put_back(operation_id: uuid.UUID, seconds: int) -> None:
    """Let the operation's times lie further back, as if so much time had passed since its dispatch."""
    with connection.cursor() as cursor:
        cursor.execute("SET session_replication_role = replica")  # the trigger forbids it, as it should
        cursor.execute(
            "UPDATE runs_operation SET first_dispatched_at = first_dispatched_at - make_interval(secs => %(s)s), "
            "dispatched_at = dispatched_at - make_interval(secs => %(s)s), "
            "deadline_at = deadline_at - make_interval(secs => %(s)s) WHERE id = %(id)s",
            {"s": seconds, "id": operation_id},
        )
        cursor.execute("SET session_replication_role = DEFAULT")

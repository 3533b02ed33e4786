"""Making the scene for a test: a project, an agent with a script, tools that write to a ledger, a worker."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import urlsplit

import yaml
from django.conf import settings
from django.db import connection

from approvals import policy
from approvals import services as approvals
from approvals.contracts import Decider, Rule
from approvals.models import Approval
from kernel_project.primitives.canonical import canonical_json, parse_json, sha256_hex
from outbox.models import Event
from runs.boundary import artifacts
from runs.boundary.contracts import Dispatch
from runs.boundary.effects import python
from runs.contracts import AgentDefinition
from runs.models import Agent, AgentVersion, Operation, Project, Run, Tool
from tests.waiting import until_sync

TEXT_SCHEMA = {
    "type": "object",
    "properties": {"text": {"type": "string"}},
    "required": ["text"],
    "additionalProperties": False,
}


class Ledger:
    """The outside world: one line per executed call, kept outside of the kernel."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, key: str, text: str) -> None:
        with self.path.open("a") as file:
            file.write(f"{key} {text}\n")
            file.flush()
            os.fsync(file.fileno())

    def lines(self) -> list[str]:
        return self.path.read_text().splitlines() if self.path.exists() else []


def make_project(slug: str = "") -> Project:
    slug = slug or f"p-{uuid.uuid4().hex[:10]}"
    return Project.objects.get_or_create(slug=slug, defaults={"name": slug})[0]


def make_tool(project: Project, name: str, function: Callable[..., Any], **declared: Any) -> Tool:
    """A Python tool, registered in this process and in the project."""
    registered = f"{name}-{uuid.uuid4().hex[:8]}"
    schema = declared.pop("input_schema", TEXT_SCHEMA)
    probe = declared.pop("probe_function", None)
    python.register(registered, input_schema=schema, probe=probe)(function)
    return Tool.objects.create(
        project=project,
        kind="python",
        name=name,
        remote_name=registered,
        exposed_name=name,
        description="a tool of a test",
        input_schema=schema,
        definition_digest=sha256_hex(name.encode()),
        **({"probe": {}} if probe else {}) | declared,
    )


def make_agent(
    project: Project, turns: Sequence[dict[str, Any]], tools: Sequence[str] = (), **more: Any
) -> AgentVersion:
    """An agent that follows a script: a list of turns as in docs/models.md."""
    folder = Path(os.environ["KERNEL_SCRIPTS"])
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / f"{uuid.uuid4().hex}.yaml"
    script.write_text(yaml.safe_dump({"turns": list(turns)}))
    definition = AgentDefinition(**{"model": f"scripted:{script.name}", "tools": tuple(tools)} | more).canonical()
    agent = Agent.objects.create(project=project, name=f"agent-{uuid.uuid4().hex[:8]}")
    digest = sha256_hex(canonical_json(definition).encode())
    return AgentVersion.objects.create(agent=agent, version=1, definition=definition, digest=digest, created_by="test")


def call(tool: str, **arguments: Any) -> dict[str, Any]:
    return {"tool": tool, "arguments": arguments}


def says(text: str) -> dict[str, Any]:
    return {"text": text}


def calls(*wanted: dict[str, Any]) -> dict[str, Any]:
    return {"calls": list(wanted)}


def writes_to(ledger: Ledger) -> Callable[..., str]:
    """A tool that writes its text to the ledger and says so."""

    def write(dispatch: Dispatch, text: str) -> str:
        ledger.write(dispatch.idempotency_key, text)
        return f"wrote {text}"

    return write


@contextlib.asynccontextmanager
async def worker() -> AsyncIterator[None]:
    """A worker of this process on the configured task queue."""
    from runs.loop.temporal import connect
    from runs.loop.worker import make_worker

    async with make_worker(await connect(), settings.TEMPORAL_TASK_QUEUE):
        yield


async def hangs(dispatch: Dispatch, text: str) -> str:
    """A tool that does nothing until it is cancelled, and leaves nothing behind then."""
    await asyncio.sleep(120)
    return "never"


class Carrier:
    """A worker in a thread of its own, so that tests stay plain functions; one serves a whole module."""

    def __init__(self, **options: Any) -> None:
        self._options = options
        self._started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._work()), name="worker", daemon=True)

    async def _work(self) -> None:
        from runs.loop.temporal import connect
        from runs.loop.worker import make_worker

        stop = asyncio.Event()
        try:
            async with make_worker(await connect(), settings.TEMPORAL_TASK_QUEUE, **self._options):
                self._started.set_result((asyncio.get_running_loop(), stop))
                await stop.wait()
        except BaseException as error:
            if not self._started.done():
                self._started.set_exception(error)
            raise

    def __enter__(self) -> Self:
        self._thread.start()
        self._started.result(timeout=30)
        return self

    def __exit__(self, *_: object) -> None:
        loop, stop = self._started.result()
        loop.call_soon_threadsafe(stop.set)
        self._thread.join(timeout=60)
        assert not self._thread.is_alive(), "the worker did not stop"


class WorkerProcess:
    """A real `manage.py runs_worker` on the test's servers, with the tools of tests/worker_tools.py."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self.ledger, self.hold = Ledger(folder / "ledger"), folder / "hold"
        database = urlsplit(os.environ["DATABASE_URL"])._replace(path=f"/{connection.settings_dict['NAME']}")
        self._environment = os.environ | {
            "DATABASE_URL": database.geturl(), "KERNEL_TOOL_MODULES": "tests.worker_tools",
            "LEDGER": str(self.ledger.path), "HOLD": str(self.hold),
        } | environment  # fmt: skip
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "manage.py", "runs_worker"]
        self.processes.append(subprocess.Popen(command, env=self._environment, cwd=settings.BASE_DIR))
        return self.processes[-1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
            process.wait()

    def tool(self, project: Project, name: str, remote_name: str, **declared: Any) -> Tool:
        """One of its tools, in the project."""
        return Tool.objects.create(
            project=project, kind="python", name=name, remote_name=remote_name, exposed_name=name,
            description="a tool of a test", input_schema=TEXT_SCHEMA, definition_digest=sha256_hex(name.encode()),
            **declared,
        )  # fmt: skip


def begin(
    turns: Sequence[dict[str, Any]], tools: Sequence[str] = (), *, project: Project, text: str = "go", **more: Any
) -> Run:
    """Start a run of a new agent with this script."""
    version = make_agent(project, turns, tools, **more)
    return begin_again(version, text)


def begin_again(version: AgentVersion, text: str = "go", key: str = "") -> Run:
    """Start one more run of an agent."""
    from runs.loop import starts

    agent = version.agent
    asked = starts.StartRequest(project=agent.project_id, agent=agent.name, input=text, owner="tester", key=key)
    return starts.start(asked).run


def read(run: Run) -> Run:
    return Run.objects.get(id=run.id)


def ended(run: Run, seconds: float = 60) -> Run:
    """The run at its end; fails with what it is doing if that does not come."""
    until_sync(lambda: read(run).state in Run.ENDED, seconds, lambda: f"{read(run).__dict__} {states(run)}")
    return read(run)


def waits(run: Run, *wanted: str, seconds: float = 60) -> list[Operation]:
    """The run's calls, once they stand in these states."""
    until_sync(lambda: [state for _, state in states(run)] == list(wanted), seconds, lambda: states(run))
    return tool_calls(run)


def tool_calls(run: Run) -> list[Operation]:
    return list(Operation.objects.filter(run=run, position__gte=1).order_by("turn", "position"))


def said(run: Run) -> str:
    """The last thing that the model said."""
    answer = parse_json(artifacts.read(run.id, read(run).result_digest))
    return str(answer["text"])


def told(run: Run) -> list[str]:
    """The types of the run's events, in order."""
    return list(Event.objects.filter(run_id=run.id).order_by("sequence").values_list("type", flat=True))


def decide(operation: Operation, verdict: Literal["approve", "reject"], reason: str = "", by: str = "ann") -> Approval:
    """A person's decision on the request of a call."""
    approval = Approval.objects.get(operation_id=operation.id)
    decider = Decider(name=by, groups=frozenset(), via="api")
    return approvals.decide(approval.id, operation.project_id, decider, verdict, reason)


def rule(project: Project, tool: str, answer: Literal["allow", "deny", "require"] = "require", **more: Any) -> None:
    """Put a policy for one tool in force."""
    policy.save(project.slug, Rule(name=f"rule for {tool}", answer=answer, tool=tool, **more), by="test")


def states(run: Run) -> list[tuple[str, str]]:
    """(name, state) of the run's tool calls, in order."""
    rows = Operation.objects.filter(run=run, position__gte=1).order_by("turn", "position")
    return list(rows.values_list("name", "state"))

"""Making the scene for a test: a project, an agent with a script, tools that write to a ledger, a worker."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import yaml
from django.conf import settings

from kernel_project.primitives.canonical import canonical_json, sha256_hex
from runs.boundary.contracts import Dispatch
from runs.boundary.effects import python
from runs.contracts import AgentDefinition
from runs.models import Agent, AgentVersion, Operation, Project, Run, Tool

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
    definition = AgentDefinition(model=f"scripted:{script.name}", tools=tuple(tools), **more).canonical()
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


def states(run: Run) -> list[tuple[str, str]]:
    """(name, state) of the run's tool calls, in order."""
    rows = Operation.objects.filter(run=run, position__gte=1).order_by("turn", "position")
    return list(rows.values_list("name", "state"))

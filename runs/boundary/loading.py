"""Read an operation with its run, its tool as registered now, and its arguments: one query, made for each dispatch.

The rows hold only what a dispatch needs of them; they are for reading, never for saving.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

from django.db.models import Model

from kernel_project.primitives.sql import rows
from runs.boundary import artifacts
from runs.models import Agent, AgentVersion, McpServer, Operation, Run, Tool

HERE = Path(__file__).parent.parent
M = TypeVar("M", bound=Model)


def operation_with_arguments(operation_id: UUID) -> tuple[Operation, bytes]:
    """The row with what hangs on it, and the stored canonical bytes of its arguments.

    Raises Operation.DoesNotExist, and what artifacts.read raises for arguments that are missing or damaged.
    """
    found = rows(HERE, "read_operation", {"operation_id": operation_id})
    if not found:
        raise Operation.DoesNotExist(f"there is no operation {operation_id}")
    run_id, first_dispatched_at, deadline_at, body, text = found[0]
    facts = json.loads(text)
    call = facts["operation"]
    for name in ("twin_id", "compensates_id"):
        call[name] = UUID(call[name]) if call[name] else None
    version = _row(AgentVersion, facts["version"])
    version.agent = _row(Agent, facts["agent"])
    operation = _row(
        Operation,
        {"id": operation_id, "first_dispatched_at": first_dispatched_at, "deadline_at": deadline_at, **call},
    )
    operation.run = _row(Run, {"id": run_id, **facts["run"]})
    operation.run.agent_version = version
    operation.tool = _tool(facts)
    return operation, artifacts.body_or_read(run_id, operation.arguments_digest, body)


def _tool(facts: dict[str, Any]) -> Tool | None:
    if facts["tool"] is None:
        return None
    tool = _row(Tool, facts["tool"])
    if facts["server"] is not None:
        tool.server = _row(McpServer, facts["server"])
    return tool


def _row(model: type[M], facts: dict[str, Any]) -> M:
    """The row with the columns that were read. Any other is fetched by whoever asks for it, as Django does."""
    columns = model._meta.concrete_fields
    names = [column.attname for column in columns if column.attname in facts]
    return model.from_db("default", names, [facts[name] for name in names])

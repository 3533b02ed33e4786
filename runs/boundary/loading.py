"""Read an operation with its run, its tool as registered now, and its arguments: one query, made for each dispatch.

The rows hold only what a dispatch needs of them; they are for reading, never for saving.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from uuid import UUID

from django.db import connection

from kernel_project.primitives.sql import load
from runs.boundary import artifacts
from runs.models import Agent, AgentVersion, McpServer, Operation, Run, Tool

HERE = Path(__file__).parent.parent


def operation_with_arguments(operation_id: UUID) -> tuple[Operation, bytes]:
    """The row with what hangs on it, and the stored canonical bytes of its arguments.

    Raises Operation.DoesNotExist, and what artifacts.read raises for arguments that are missing or damaged.
    """
    with connection.cursor() as cursor:
        cursor.execute(load(HERE, "read_operation"), {"operation_id": operation_id})
        row = cursor.fetchone()
    if row is None:
        raise Operation.DoesNotExist(f"there is no operation {operation_id}")
    run_id, first_dispatched_at, deadline_at, body, text = row
    facts = json.loads(text)
    call = facts["operation"]
    for name in ("twin_id", "compensates_id"):
        call[name] = UUID(call[name]) if call[name] else None
    version = AgentVersion(agent=Agent(**facts["agent"]), **facts["version"])
    operation = Operation(
        id=operation_id,
        run=Run(id=run_id, agent_version=version, **facts["run"]),
        tool=_tool(facts),
        first_dispatched_at=first_dispatched_at,
        deadline_at=deadline_at,
        **call,
    )
    return operation, artifacts.body_or_read(run_id, operation.arguments_digest, body)


def _tool(facts: dict[str, Any]) -> Tool | None:
    if facts["tool"] is None:
        return None
    tool = Tool(**facts["tool"])
    if facts["server"] is not None:
        tool.server = McpServer(**facts["server"])
    return tool

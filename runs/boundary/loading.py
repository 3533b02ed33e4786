"""Read an operation with its run, its tool as registered now, and its arguments: one query, made for each dispatch.

What hangs on it holds only what a call needs of it; it is for reading, never for saving.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from uuid import UUID

from kernel_project.primitives.sql import load
from runs.boundary import artifacts
from runs.models import Agent, AgentVersion, McpServer, Operation, Run, Tool

HERE = Path(__file__).parent.parent


def operation_with_arguments(operation_id: UUID) -> tuple[Operation, bytes]:
    """The row with what hangs on it, and the stored canonical bytes of its arguments.

    Raises Operation.DoesNotExist, and what artifacts.read raises for arguments that are missing or damaged.
    """
    rows = Operation.objects.raw(load(HERE, "read_operation"), {"operation_id": operation_id})
    row: Any = next(iter(rows), None)  # with the query's own columns beside the model's
    if row is None:
        raise Operation.DoesNotExist(f"there is no operation {operation_id}")
    version = AgentVersion(**json.loads(row.version_facts))
    version.agent = Agent(id=version.agent_id, name=row.agent_name)
    row.run = Run(id=row.run_id, agent_version=version, **json.loads(row.run_facts))
    if row.tool_facts is not None:
        row.tool = Tool(**json.loads(row.tool_facts))
        if row.server_facts is not None:
            row.tool.server = McpServer(**json.loads(row.server_facts))
    return row, artifacts.body_or_read(row.run_id, row.arguments_digest, row.arguments_body)

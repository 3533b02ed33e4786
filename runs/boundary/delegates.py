"""How another agent looks to a model: a tool with one argument, the task. Who carries it out is the loop's affair."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kernel_project.primitives.canonical import canonical_bytes, sha256_hex
from runs.boundary.tool_names import exposed_name
from runs.models import Kind

SERVER = "agent"  # in the tool's name, before the agent's
TASK_CHARS_MAX = 100_000  # fits into what a run takes as its input, in any script
TIMEOUT_SECONDS = 60  # of starting the child, or of taking up its end; the child itself has limits of its own
INPUT_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "task": {
            "type": "string",
            "minLength": 1,
            "maxLength": TASK_CHARS_MAX,
            "description": "All that the other agent needs to know: it sees nothing of this conversation.",
        }
    },
    "required": ["task"],
    "additionalProperties": False,
}


def tool_name(agent: str) -> str:
    """The name of the tool that lets this agent do a task."""
    return f"{SERVER}/{agent}"


def tool_names(definition: Mapping[str, Any]) -> list[str]:
    """The tools of all agents that one with this definition may delegate to."""
    return [tool_name(agent) for agent in definition.get("delegates", ())]


def tool_values(agent: str) -> dict[str, Any]:
    """The registration of that tool. It only reads: whatever the other agent does is judged call by call."""
    shown = exposed_name(SERVER, agent)
    description = f"Let the agent {agent} do a task, and wait for its answer. It works on its own and may take long."
    pinned = {"agent": agent, "description": description, "input_schema": INPUT_SCHEMA, "name": shown}
    return {
        "kind": Kind.AGENT,
        "remote_name": agent,
        "exposed_name": shown,
        "description": description,
        "input_schema": dict(INPUT_SCHEMA),
        "definition_digest": sha256_hex(canonical_bytes(pinned)),
        "effect": "read",
        "timeout_seconds": TIMEOUT_SECONDS,
    }

"""What a tool's registration promised when a call was made, beside what has columns of its own: kept on the operation,
so that a registration that changes does not change what becomes of a call that was written before.
"""

from __future__ import annotations

import math
from typing import Any

from runs.models import Kind, Operation, Tool

ABSENT_AFTER_SECONDS = 60.0  # after its deadline, a call that a probe does not find will not happen any more
ERROR_EFFECTS = ("none", "occurred", "uncertain")


def promised(tool: Tool) -> dict[str, Any]:
    """What is kept of this registration."""
    return {
        "replay_safe": tool.kind == Kind.SANDBOX and tool.replay_safe,
        "error_effect": tool.configuration.get("error_effect"),
        "absent_after_seconds": tool.configuration.get("absent_after_seconds"),
    }


def replay_safe(operation: Operation) -> bool:
    """Whether it is a sandboxed command that may run again from its start, in a fresh sandbox (F3)."""
    return bool(_kept(operation).get("replay_safe"))


def error_effect(operation: Operation) -> str:
    """What an error answer of the tool says of its effect: none, occurred or uncertain (docs/decisions/0003).

    Uncertain also where nobody can read what was registered.
    """
    said = _kept(operation).get("error_effect") or "none"
    return said if said in ERROR_EFFECTS else "uncertain"


def absent_after_seconds(operation: Operation) -> float:
    """How long after its deadline a call that is not found may still happen; without end where nobody can read it."""
    said = _kept(operation).get("absent_after_seconds")
    if said is None:
        return ABSENT_AFTER_SECONDS
    try:
        seconds = float(said)
    except (TypeError, ValueError):
        return math.inf
    return seconds if seconds >= 0 else math.inf


def _kept(operation: Operation) -> dict[str, Any]:
    """Rows of a version that kept nothing know only what is registered now."""
    if operation.declared is None:
        return promised(operation.tool) if operation.tool else {}
    kept: dict[str, Any] = operation.declared
    return kept

"""Rows as answers of the JSON API. Decides nothing."""

from __future__ import annotations

import itertools
import json
from typing import Any

from approvals.selectors import requests
from outbox.models import Event
from runs.api.contracts import (
    AgentItem,
    CompensationItem,
    EventItem,
    EventPage,
    MessageItem,
    MessageSaid,
    OperationDetail,
    OperationItem,
    RunDetail,
    RunItem,
    RunStarted,
    ToolItem,
)
from runs.boundary import compensation
from runs.boundary.artifacts import ref
from runs.models import AgentVersion, Operation, Run, RunMessage, Tool
from runs.selectors import Told, charged

COPIED_OF_RUN = (
    "id", "state", "waiting_for", "turn", "failure_code", "failure_message", "workspace", "started_by", "created_at",
    "started_at", "ended_at", "cancel_requested_at", "cancel_requested_by", "cancel_reason", "resumes", "parent_id",
    "parent_operation_id", "depth", "build_id",
)  # fmt: skip
COPIED_OF_OPERATION = (
    "id", "run_id", "turn", "position", "kind", "name", "effect", "state", "attempt", "actor", "policy",
    "policy_answer", "definition_digest", "result_invalid", "error_class", "error_message", "usage", "verdict",
    "reconciled_by", "reconciled_at", "note", "needs_attention", "probes", "probe_attempts", "next_probe_at", "twin_id",
    "compensates_id", "proposed_at", "first_dispatched_at", "dispatched_at", "deadline_at", "settled_at",
)  # fmt: skip
COPIED_OF_APPROVAL = ("id", "state", "requested_at", "decided_at", "decided_by")
APPROVALS_MAX = 50  # requests about one call that are shown with it
COPIED_OF_TOOL = (
    "name", "exposed_name", "kind", "description", "effect", "idempotent_for_seconds", "replay_safe",
    "timeout_seconds", "definition_digest", "input_schema", "enabled",
)  # fmt: skip


def _copied(row: object, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(row, name) for name in names}


def _maybe_ref(digest: str) -> str | None:
    return ref(digest) if digest else None


def started(run: Run) -> RunStarted:
    return RunStarted.model_validate(
        _copied(run, ("id", "workspace", "started_by", "created_at", "started_at"))
        | _agent_of(run)
        | {"state": "running", "input_ref": ref(run.input_digest)}
    )


def _agent_of(run: Run) -> dict[str, Any]:
    version = run.agent_version
    return {"project": run.project_id, "agent": version.agent.name, "agent_version": version.version}


def _run(run: Run) -> dict[str, Any]:
    refs = {"input_ref": ref(run.input_digest), "result_ref": _maybe_ref(run.result_digest)}
    return _copied(run, COPIED_OF_RUN) | _agent_of(run) | refs | {"model": getattr(run, "model", None) or ""}


def run_item(run: Run) -> RunItem:
    return RunItem.model_validate(_run(run))


def run_detail(run: Run, result: str | None, cut: bool) -> RunDetail:
    tokens, cost = charged(run.id)
    spent = {"tokens_charged": tokens, "cost_charged": f"{cost.normalize():f}"}
    return RunDetail.model_validate(_run(run) | {"result": result, "result_cut": cut} | spent)


def _message(message: RunMessage) -> dict[str, Any]:
    names = ("run_id", "number", "sent_by", "created_at")
    return _copied(message, names) | {"message_ref": ref(message.digest)}


def message_said(message: RunMessage) -> MessageSaid:
    return MessageSaid.model_validate(_message(message))


def message_item(message: RunMessage) -> MessageItem:
    return MessageItem.model_validate(_message(message) | {"turn": message.turn})


def event_page(told: Told, after: int) -> EventPage:
    items = [event_item(event, told) for event in told.events]
    last = items[-1].sequence if items else after
    return EventPage(
        items=items,
        next_after=last if items and last < told.head else None,
        head=told.head,
        published=told.published,
        gaps=gaps([after, *(item.sequence for item in items)]),
    )


def event_item(event: Event, told: Told) -> EventItem:
    parked = event.sequence in told.parked
    return EventItem(
        sequence=event.sequence,
        event_id=event.event_id,
        type=event.type,
        occurred_at=event.occurred_at,
        recorded_at=event.recorded_at,
        operation_id=event.operation_id,
        delivered=event.sequence <= told.published and not parked,
        parked=parked,
        envelope=_envelope(event.envelope),
    )


def _envelope(text: str) -> dict[str, Any] | None:
    try:
        envelope = json.loads(text)
    except (ValueError, RecursionError):  # shown as unreadable, so that the events around it are still seen
        return None
    return envelope if isinstance(envelope, dict) else None


def gaps(sequences: list[int]) -> list[tuple[int, int]]:
    """The stretches that are missing between ascending sequences."""
    pairs = itertools.pairwise(sequences)
    return [(one + 1, other - 1) for one, other in pairs if other > one + 1]


def _operation(operation: Operation) -> dict[str, Any]:
    return _copied(operation, COPIED_OF_OPERATION) | {
        "arguments_hash": operation.arguments_digest,
        "arguments_ref": ref(operation.arguments_digest),
        "result_ref": _maybe_ref(operation.result_digest),
        "evidence_ref": _maybe_ref(operation.evidence_digest),
    }


def operation_item(operation: Operation) -> OperationItem:
    return OperationItem.model_validate(_operation(operation))


def operation_detail(operation: Operation, bodies: dict[str, Any]) -> OperationDetail:
    asked = requests(operation.project_id, run_id=operation.run_id).filter(operation_id=operation.id)
    about: dict[str, Any] = {
        "approvals": [_copied(one, COPIED_OF_APPROVAL) for one in asked[:APPROVALS_MAX]],
        "compensations": [compensation_item(*one) for one in compensation.of(operation.id)],
    }
    return OperationDetail.model_validate(_operation(operation) | about | bodies)


def compensation_item(run: Run, call: Operation | None) -> CompensationItem:
    assert run.compensates_id is not None
    return CompensationItem(
        compensates_id=run.compensates_id,
        run_id=run.id,
        run_state=run.state,
        operation_id=call.id if call else None,
        operation_state=call.state if call else None,
        requested_by=run.started_by,
        created_at=run.created_at,
    )


def agent_item(version: AgentVersion) -> AgentItem:
    definition = version.definition
    return AgentItem(
        name=version.agent.name,
        version=version.version,
        digest=version.digest,
        model=definition["model"],
        tools=definition["tools"],
        delegates=definition.get("delegates", []),
        on_uncertain=definition["on_uncertain"],
        created_at=version.created_at,
        created_by=version.created_by,
    )


def tool_item(tool: Tool) -> ToolItem:
    return ToolItem.model_validate(_copied(tool, COPIED_OF_TOOL) | {"probes": tool.probe is not None})

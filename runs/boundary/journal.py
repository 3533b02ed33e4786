"""How an operation's moves are told: one event for each, with the same id whenever it is told again."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from kernel_project.primitives import ids
from outbox.contracts import KERNEL, Actor, NewEvent
from runs.boundary.artifacts import ref
from runs.models import Kind, Operation


def started(operation: Operation) -> NewEvent:
    """`tool.started` or `model.started` of the attempt that is being dispatched."""
    return _event(operation, "started", _judgement(operation))


def completed(operation: Operation, **more: Any) -> NewEvent:
    """The attempt was answered and the answer is kept."""
    return _terminal(operation, "completed", {"result_ref": ref(operation.result_digest), **more})


def failed(operation: Operation, effect: str, **more: Any) -> NewEvent:
    """The attempt failed; `effect` is none, uncertain or occurred."""
    error = {"effect": effect, "error_class": operation.error_class}
    if operation.result_digest:
        error["result_ref"] = ref(operation.result_digest)
    return _terminal(operation, "failed", {**error, **more})


def blocked(operation: Operation) -> NewEvent:
    """Policy, a person or the kernel itself refused the call: it never left."""
    return _event(
        operation, "blocked", {"status": operation.state, "reason": operation.error_class, **_judgement(operation)}
    )


def _judgement(operation: Operation) -> dict[str, Any]:
    """What policy said of the call, and which version of which rule said it (S1)."""
    told: dict[str, Any] = {"policy": operation.policy, "policy_decision": operation.policy_answer}
    if operation.policy_id:
        told |= {"policy_id": str(operation.policy_id), "policy_version": operation.policy_version}
    return told


def superseded(operation: Operation, effect: str, error_class: str) -> NewEvent:
    """The current attempt got no outcome, and another one follows: it is told as failed, like every attempt."""
    return _terminal(operation, "failed", {"status": "failed", "effect": effect, "error_class": error_class})


def reconciled(operation: Operation, actor: Actor, corrects: bool = False) -> NewEvent:
    """The unclear outcome was ended by a probe, a late result or a named person; `corrects` an earlier verdict."""
    data: dict[str, Any] = {"effect": operation.verdict, "by": operation.reconciled_by, "note": operation.note}
    if operation.result_digest:
        data["result_ref"] = ref(operation.result_digest)
    evidence = (ref(operation.evidence_digest),) if operation.evidence_digest else ()
    subject = f"{operation.id}/corrected" if corrects else operation.id
    return _other(operation, "operation.reconciled", data, actor, subject=subject, evidence=evidence)


def probed(operation: Operation, verdict: str, number: int) -> NewEvent:
    """One look at the other side after the current attempt, whatever it found."""
    subject = f"{operation.id}/{operation.attempt}"
    return _other(operation, "operation.probed", {"verdict": verdict, "probe": number}, subject=subject, number=number)


def late_result(operation: Operation, attempt: int, effect: str, digest: str, error_class: str) -> NewEvent:
    """An attempt finished after its operation had moved on. Kept as evidence; it changes nothing by itself."""
    data = {"late_attempt": attempt, "effect": effect, "error_class": error_class}
    if digest:
        data["result_ref"] = ref(digest)
    subject = f"{operation.id}/{digest or error_class}"
    return _other(operation, "operation.late_result", data, subject=subject, number=attempt)


def started_id(operation: Operation, attempt: int | None = None) -> UUID:
    """The id of the event that told of an attempt's dispatch: the current one's, if none is named."""
    number = operation.attempt if attempt is None else attempt
    return ids.event_id(operation.run_id, operation.id, f"{_family(operation)}.started", number)


def _family(operation: Operation) -> str:
    return "model" if operation.kind == Kind.MODEL else "tool"


def _terminal(operation: Operation, what: str, data: dict[str, Any]) -> NewEvent:
    return _event(operation, what, {"status": operation.state, **data}, parent=started_id(operation))


def _event(operation: Operation, what: str, data: dict[str, Any], parent: UUID | None = None) -> NewEvent:
    common: dict[str, Any] = {
        "attempt": operation.attempt,
        "arguments_hash": operation.arguments_digest,
        "arguments_ref": ref(operation.arguments_digest),
    }
    if operation.kind == Kind.MODEL:
        provider, _, model = operation.name.partition(":")
        common |= {"provider": provider, "model": model}
    else:
        common |= {"tool": operation.name, "declared_effect": operation.effect}
    if operation.compensates_id:
        common["compensates"] = str(operation.compensates_id)
    return NewEvent(
        run_id=operation.run_id,
        project=operation.project_id,
        type=f"{_family(operation)}.{what}",
        subject=operation.id,
        attempt=operation.attempt,
        operation_id=operation.id,
        parent_event_id=parent,
        caused_by=(parent,) if parent else (),
        parent_frame_id=turn_frame(operation.run_id, operation.turn),
        actor=Actor(id=operation.actor, type="agent"),
        data=common | data,
    )


def _other(
    operation: Operation,
    event_type: str,
    data: dict[str, Any],
    actor: Actor = KERNEL,
    *,
    subject: UUID | str = "",
    number: int = 0,
    evidence: tuple[str, ...] = (),
) -> NewEvent:
    """An event about an operation's fate; its parent is the `started` event of the attempt that it is about."""
    parent = started_id(operation, data.get("late_attempt"))
    return NewEvent(
        run_id=operation.run_id,
        project=operation.project_id,
        type=event_type,
        subject=subject or operation.id,
        attempt=number or operation.attempt,
        operation_id=operation.id,
        parent_event_id=parent,
        caused_by=(parent,),
        parent_frame_id=turn_frame(operation.run_id, operation.turn),
        actor=actor,
        evidence=evidence,
        data={"tool": operation.name, "attempt": operation.attempt, **data},
    )


def turn_frame(run_id: UUID, turn: int) -> str:
    """The frame of a turn, in which its operations are."""
    return f"{run_id}/{turn}"

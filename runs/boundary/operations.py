"""The side-effect boundary: dispatch (intent, committed), then the effect, then settle (outcome, committed).

No transaction is open while an effect runs. The row decides what may happen, whatever the engine delivers twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

from django.db import connection, transaction
from django.db.models.functions import Now

from approvals import selectors as approvals
from kernel_project.primitives.canonical import parse_json
from kernel_project.primitives.sql import load
from outbox import services as outbox
from runs.boundary import artifacts, faults, journal, workspaces
from runs.boundary.contracts import Dispatch, EffectResult
from runs.boundary.intents import binding
from runs.boundary.results import Packed, pack, visible
from runs.boundary.threads import in_thread
from runs.models import Artifact, Kind, Operation

HERE = Path(__file__).parent.parent
ATTEMPTS_MAX = 4  # dispatches of one operation, counting the first; then a read fails and a write is uncertain
ERROR_MESSAGE_CHARS_MAX = 1_000
PROBE_FIRST_AFTER = timedelta(seconds=5)  # an uncertain operation is looked for this soon, then with back-off
STATE = Operation.State

Effect = Literal["none", "uncertain", "occurred"]


@dataclass(frozen=True)
class Settled:
    """The operation needs nothing more from this caller; `state` is where it stands."""

    operation_id: UUID
    state: str


@dataclass(frozen=True)
class Unclear:
    """An attempt was dispatched and its outcome is not known: the redelivery table decides what follows."""

    dispatch: Dispatch
    error_class: str
    message: str


def dispatch(operation_id: UUID, heartbeat: Callable[..., None]) -> Dispatch | Settled | Unclear:
    """Commit the intent of one more attempt and return the permission to perform it.

    Settled: the operation is not, or no longer, to be performed. Unclear: an earlier delivery dispatched it and left no
    outcome. Raises whatever the database raises when the intent cannot be committed; nothing has left then.
    """
    with transaction.atomic(savepoint=False):
        operation = _read(operation_id)
        if operation.state == STATE.DISPATCHED:
            return _interrupted(operation, heartbeat)
        if not _may_go(operation):
            return Settled(operation.id, operation.state)
        return _begin(operation, heartbeat)


def interrupted(operation_id: UUID) -> Unclear | None:
    """The attempt that was dispatched and left no outcome, if there is one."""
    operation = _read(operation_id)
    return _interrupted(operation, lambda *_: None) if operation.state == STATE.DISPATCHED else None


def _interrupted(operation: Operation, heartbeat: Callable[..., None]) -> Unclear:
    message = "the worker was gone before the outcome was written"
    return Unclear(_permission(operation, heartbeat), "interrupted", message)


def again(unclear: Unclear, heartbeat: Callable[..., None]) -> Dispatch | Settled | Unclear:
    """Dispatch the next attempt of an operation whose unclear attempt may safely be repeated.

    Settled when it moved on meanwhile; the attempts already used are not checked here.
    """
    with transaction.atomic(savepoint=False):
        operation = _read(unclear.dispatch.operation_id)
        if (operation.state, operation.attempt) != (STATE.DISPATCHED, unclear.dispatch.attempt):
            return Settled(operation.id, operation.state)
        return _begin(operation, heartbeat)


def _read(operation_id: UUID) -> Operation:
    related = ("run", "run__agent_version__agent", "tool", "tool__server")
    return Operation.objects.select_related(*related).get(id=operation_id)


def _may_go(operation: Operation) -> bool:
    """Whether the row may be dispatched now. A refused call is closed here, with its event."""
    if operation.state == STATE.AWAITING_APPROVAL:
        granted = approvals.granted_binding(operation.id)
        if granted is None:
            return False
        if granted != binding(operation):
            return not _block(operation, "approval_mismatch", "the call is no longer the one that was approved")
    elif operation.state == STATE.PROPOSED:
        assert operation.policy_answer == "allow"
    elif not (operation.state == STATE.RECONCILED and operation.verdict == Operation.Verdict.NONE):
        return operation.state == STATE.FAILED and operation.kind == Kind.MODEL
    if twin := _unresolved_twin(operation):
        return not _block(operation, "unresolved_twin", f"operation {twin} made the same call and is still unclear")
    return True


def _unresolved_twin(operation: Operation) -> UUID | None:
    """The repeat guard: another operation of the project with the same call whose effect is not known yet."""
    if operation.effect == "read":
        return None
    twins = Operation.objects.filter(
        project_id=operation.project_id,
        name=operation.name,
        arguments_digest=operation.arguments_digest,
        state=STATE.UNCERTAIN,
    ).exclude(id=operation.id)
    found: UUID | None = twins.values_list("id", flat=True).first()
    return found


def _block(operation: Operation, error_class: str, message: str) -> bool:
    """Close a call that never left. A reconciled one stays as it is: its own story has ended already."""
    if operation.state == STATE.RECONCILED:
        return True
    moved = _move(operation, STATE.BLOCKED, error_class=error_class, error_message=message, settled_at=Now())
    if moved:
        outbox.append([journal.blocked(operation)])
    return True


def _begin(operation: Operation, heartbeat: Callable[..., None]) -> Dispatch | Settled:
    """The counted UPDATE and its event. Zero rows: the run was cancelled or somebody was faster."""
    timeout = timeout_seconds(operation)
    with connection.cursor() as cursor:
        cursor.execute(
            load(HERE, "begin_attempt"),
            {
                "run_id": operation.run_id,
                "operation_id": operation.id,
                "state": operation.state,
                "attempt": operation.attempt,
                "timeout_seconds": timeout,
            },
        )
        row = cursor.fetchone()
    if row is None:
        current = Operation.objects.values_list("state", flat=True).get(id=operation.id)
        return Settled(operation.id, current)
    operation.attempt, operation.dispatched_at, operation.first_dispatched_at, operation.deadline_at = row
    operation.state, operation.sending_at = STATE.DISPATCHED, None
    outbox.append([journal.started(operation)])
    return _permission(operation, heartbeat)


def timeout_seconds(operation: Operation) -> float:
    """How long one attempt may take."""
    if operation.tool is not None:
        return float(operation.tool.timeout_seconds)
    return float(operation.run.agent_version.definition["model_timeout_seconds"])


def permission_to_probe(operation: Operation) -> Dispatch:
    """The same call as it was dispatched, for a look at the other side; its `sending` refuses."""
    return _permission(operation, lambda *_: None)


def _permission(operation: Operation, heartbeat: Callable[..., None]) -> Dispatch:
    assert operation.deadline_at is not None
    arguments = parse_json(artifacts.read(operation.run_id, operation.arguments_digest))

    async def sending() -> None:
        faults.reach("before_sending_mark", operation.name)
        await in_thread(mark_sending, operation.id, operation.attempt)
        faults.reach("after_sending_mark", operation.name)

    return Dispatch(
        operation_id=operation.id,
        run_id=operation.run_id,
        project_id=operation.project_id,
        attempt=operation.attempt,
        tool=operation.name,
        arguments=arguments,
        configuration=_configuration(operation),
        timeout_seconds=timeout_seconds(operation),
        deadline_at=operation.deadline_at,
        workspace=str(workspaces.path(operation.run)),
        sending=sending,
        heartbeat=heartbeat,
        kind=operation.kind,
    )


def _configuration(operation: Operation) -> dict[str, Any]:
    """What the registry says to the adapter of this tool."""
    tool = operation.tool
    if tool is None:
        return {}
    known: dict[str, Any] = {
        **tool.configuration,
        "remote_name": tool.remote_name,
        "probe": tool.probe,
        "mark_sending": marks_sending(operation),
    }
    if tool.server is not None:
        known["server"] = {**tool.server.configuration, "name": tool.server.name}
        known["definition_digest"] = operation.definition_digest
    return known


def marks_sending(operation: Operation) -> bool:
    """Whether the adapter must say `sending()`: a write that the other side could not recognise when repeated."""
    return operation.effect == "write" and not operation.idempotent_for_seconds


class Superseded(Exception):
    """The attempt is no longer the current one: it must not send."""


def mark_sending(operation_id: UUID, attempt: int) -> None:
    """Write down that the first byte may leave now. Until then a crash is provably `NotSent`.

    Raises Superseded when another attempt has taken over: nothing may leave then.
    """
    marked = Operation.objects.filter(id=operation_id, state=STATE.DISPATCHED, attempt=attempt).update(sending_at=Now())
    if marked != 1:
        raise Superseded(f"attempt {attempt} of operation {operation_id} is not the current one any more")


def settle_answer(given: Dispatch, result: EffectResult, **facts: Any) -> Settled:
    """Write the answer of an attempt: the effect happened, or the tool itself says that it failed.

    A stale attempt changes nothing, is kept as evidence, and ends an uncertain operation as occurred.
    """
    packed = pack(result)
    with transaction.atomic():
        operation = Operation.objects.select_related("run").get(id=given.operation_id)
        artifacts.claim(operation.run_id, Artifact.Kind.RESULT, packed.bodies)
        outcome = {"result_digest": packed.record.digest, "result_invalid": packed.invalid, "settled_at": Now()}
        if result.is_error:
            outcome |= {"error_class": "tool_error"}
        state = STATE.TOOL_ERROR if result.is_error else STATE.SUCCEEDED
        if not _settle(operation, given, state, **outcome):
            return _late(operation, given, packed)
        if result.is_error:
            effect: Effect = "none" if operation.effect == "read" else error_effect(operation)
            outbox.append([journal.failed(operation, effect, **facts)])
        else:
            outbox.append([journal.completed(operation, **facts)])
    return Settled(operation.id, state)


def settle_model_answer(given: Dispatch, kept: artifacts.Staged, facts: dict[str, Any]) -> Settled:
    """Write the answer of a model call; `facts` are provider, latency and usage. Joins the caller's transaction."""
    with transaction.atomic(savepoint=False):
        operation = Operation.objects.get(id=given.operation_id)
        artifacts.claim(operation.run_id, Artifact.Kind.RESULT, [kept])
        outcome = {"result_digest": kept.digest, "usage": facts["usage"], "settled_at": Now()}
        if _settle(operation, given, STATE.SUCCEEDED, **outcome):
            outbox.append([journal.completed(operation, **facts)])
        return Settled(operation.id, operation.state)


def error_effect(operation: Operation) -> Effect:
    """What an error answer of a write says about its effect: the server's word, unless the registry knows better."""
    tool = operation.tool
    return "occurred" if tool is not None and tool.configuration.get("error_effect") == "occurred" else "none"


def settle_failure(given: Dispatch, error_class: str, message: str, **facts: Any) -> Settled:
    """Write that an attempt provably had no effect; `facts` are further columns of the row, such as `usage`."""
    with transaction.atomic():
        operation = Operation.objects.get(id=given.operation_id)
        cut = visible(message)[:ERROR_MESSAGE_CHARS_MAX]
        outcome = {"error_class": error_class, "error_message": cut, "settled_at": Now(), **facts}
        if _settle(operation, given, STATE.FAILED, **outcome):
            outbox.append([journal.failed(operation, "none")])
        return Settled(operation.id, operation.state)


def settle_uncertain(unclear: Unclear) -> Settled:
    """Write that an attempt may or may not have had its effect. From here only a probe, a late result or a named
    person goes on."""
    given = unclear.dispatch
    with transaction.atomic():
        operation = Operation.objects.get(id=given.operation_id)
        outcome: dict[str, Any] = {
            "error_class": unclear.error_class,
            "error_message": visible(unclear.message)[:ERROR_MESSAGE_CHARS_MAX],
            "settled_at": Now(),
            "next_probe_at": Now() + PROBE_FIRST_AFTER if operation.probes else None,
            "needs_attention": not operation.probes,
        }
        if _settle(operation, given, STATE.UNCERTAIN, **outcome):
            outbox.append([journal.failed(operation, "uncertain")])
        return Settled(operation.id, operation.state)


def _settle(operation: Operation, given: Dispatch, state: Operation.State, **values: Any) -> bool:
    """Compare-and-set on (dispatched, this attempt)."""
    moved = Operation.objects.filter(id=operation.id, state=STATE.DISPATCHED, attempt=given.attempt).update(
        state=state, **values
    )
    if moved == 1:
        operation.state = state
        for name in ("result_digest", "error_class"):
            setattr(operation, name, values.get(name, ""))
    return moved == 1


def _move(operation: Operation, state: Operation.State, **values: Any) -> bool:
    """A counted UPDATE from the state that was read; false if somebody got there first."""
    moved = Operation.objects.filter(id=operation.id, state=operation.state, attempt=operation.attempt).update(
        state=state, **values
    )
    if moved == 1:
        operation.state = state
        operation.error_class = values.get("error_class", operation.error_class)
    return moved == 1


def _late(operation: Operation, given: Dispatch, packed: Packed) -> Settled:
    from runs.boundary import reconcile

    outbox.append([journal.late_result(operation, given.attempt, packed.record.digest)])
    if operation.state == STATE.UNCERTAIN and operation.attempt == given.attempt:
        reconcile.by_late_result(operation, packed.record.digest)
    return Settled(operation.id, operation.state)

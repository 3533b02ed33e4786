"""The side-effect boundary: dispatch (intent, committed), then the effect, then settle (outcome, committed).

No transaction is open while an effect runs. The row decides what may happen, whatever the engine delivers twice.
Whoever locks more than one row takes them in this order: run, approval, operation, stream.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models.functions import Now

from approvals import services as approvals
from kernel_project.primitives.canonical import parse_json
from kernel_project.primitives.sql import rows
from outbox import services as outbox
from outbox.contracts import NewEvent
from runs.boundary import artifacts, declared, echoes, faults, gate, journal, twins, workspaces, writing
from runs.boundary.contracts import NOTHING, Charge, Dispatch, EffectResult, NotSent
from runs.boundary.gate import ATTEMPTS_MAX as ATTEMPTS_MAX
from runs.boundary.loading import operation_with_arguments
from runs.boundary.results import Packed, pack, visible
from runs.boundary.threads import in_thread
from runs.models import Artifact, Kind, Operation

HERE = Path(__file__).parent.parent
ERROR_MESSAGE_CHARS_MAX = 1_000
EARLIER = "an earlier attempt may have had its effect; the last one: "
PROBE_FIRST_AFTER_SECONDS = 5.0  # an uncertain operation is looked for this soon, then with back-off
TWIN_CONSTRAINT = "operation_no_twin_in_flight"
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


@dataclass(frozen=True)
class Held:
    """Another operation makes the same call right now: this one may go when that one has its outcome."""

    operation_id: UUID
    twin: UUID


Step = Dispatch | Settled | Unclear | Held


def dispatch(
    operation_id: UUID, heartbeat: Callable[..., None], *, patient: bool = False, reserved: Charge | None = None
) -> Step:
    """Commit the intent of one more attempt and return the permission to perform it.

    `reserved` is what a call of a model is charged for this attempt, if it goes, until its answer says what it used.

    Settled: the operation is not, or no longer, to be performed; a refused call is closed, with its event. Unclear: an
    earlier delivery dispatched it and left no outcome. Held, for a `patient` caller only: a twin is under way; others
    see the call refused. Raises what the database raises when the intent cannot be committed; nothing has left then.
    """
    operation, arguments = operation_with_arguments(operation_id)
    if operation.state == STATE.DISPATCHED:
        return _interrupted(operation, arguments, heartbeat)
    match gate.check(operation, arguments):
        case gate.Go() as go:
            return _let_go(operation, arguments, heartbeat, go, patient=patient, reserved=reserved)
        case gate.Stop() as stop:
            return _close(operation, stop)
        case gate.Ask() as ask:
            return _ask(operation, ask)
        case gate.Wait():
            return Settled(operation.id, operation.state)


def open_model_call(
    operation: Operation,
    described: artifacts.Staged,
    heartbeat: Callable[..., None],
    *before: NewEvent,
    reserved: Charge = NOTHING,
    heard: int = 0,
) -> Dispatch | None:
    """Take the run's next turn and let its model call go, whose row is not written yet: all in one statement.

    `before` is told before the call; `reserved` is what it is charged until its answer says what it used; messages up
    to the number `heard` are in its question. None: the run was asked to stop. Raises IntegrityError when another
    delivery has written the call. Calls of tools go through `dispatch`, which asks policy and approvals.
    """
    assert operation.kind == Kind.MODEL
    assert operation.policy_answer == "allow"
    operation.state, operation.attempt = STATE.DISPATCHED, 1
    events = [*before, journal.started(operation)]
    found = rows(
        HERE,
        "open_model_call",
        {
            "run_id": operation.run_id,
            "turn": operation.turn,
            "bodies": artifacts.claims([described]),
            "operation": writing.as_json([operation]),
            "timeout_seconds": timeout_seconds(operation),
            "tokens": reserved.tokens,
            "cost": reserved.cost,
            "heard": heard,
            "build_id": settings.KERNEL_BUILD_ID,
            "events": outbox.given(events),
        },
        columns=writing.columns(),
    )
    if not found:
        return None
    _begun(operation, events, found)
    return _permission(operation, described.data, heartbeat)


def interrupted(operation_id: UUID) -> Unclear | None:
    """The attempt that was dispatched and left no outcome, if there is one."""
    operation, arguments = operation_with_arguments(operation_id)
    if operation.state != STATE.DISPATCHED:
        return None
    return _interrupted(operation, arguments, lambda *_: None)


def _interrupted(operation: Operation, arguments: bytes, heartbeat: Callable[..., None]) -> Unclear:
    message = "the worker was gone before the outcome was written"
    return Unclear(_permission(operation, arguments, heartbeat), "interrupted", message)


def again(
    unclear: Unclear,
    heartbeat: Callable[..., None],
    effect: Effect = "none",
    *,
    unsent: bool = False,
    reserved: Charge | None = None,
) -> Step:
    """Dispatch the next attempt of an operation whose unclear attempt may safely be repeated.

    The unclear attempt is told as failed, with the `effect` that it is taken to have had. `unsent` says that it is
    because it has not said that it sends: if it has by now, it is unclear as before. Whatever would stop a first
    dispatch ends the operation with what is known. Settled when it moved on meanwhile or its run is to stop; the
    attempts already used are not checked here.
    """
    operation, arguments = operation_with_arguments(unclear.dispatch.operation_id)
    if (operation.state, operation.attempt) != (STATE.DISPATCHED, unclear.dispatch.attempt):
        return Settled(operation.id, operation.state)
    go = gate.check_again(operation, arguments)
    if isinstance(go, gate.Stop):
        return _end_here(unclear, go, effect, unsent=unsent)
    told = journal.superseded(operation, effect, unclear.error_class)
    if _begin(operation, go, told, unclear=effect != "none", unsent=unsent, reserved=reserved):
        return _permission(operation, arguments, heartbeat)
    return unclear if unsent and _is_sending(unclear.dispatch) else _as_it_is(operation.id)


def _end_here(unclear: Unclear, stop: gate.Stop, effect: Effect, *, unsent: bool) -> Settled | Unclear:
    """The unclear attempt stays the last one: told as what it is taken to have been, and why it is not repeated."""
    ended = replace(unclear, error_class=stop.error_class, message=f"it was not sent again: {stop.message}")
    if effect != "none":
        return settle_uncertain(ended)
    return settle_unsent(ended) if unsent else settle_failure(ended.dispatch, ended.error_class, ended.message)


def _is_sending(given: Dispatch) -> bool:
    """Whether this attempt, still the current one, has said that it sends."""
    current = Operation.objects.filter(id=given.operation_id, state=STATE.DISPATCHED, attempt=given.attempt)
    return current.filter(sending_at__isnull=False).exists()


def _let_go(
    operation: Operation,
    arguments: bytes,
    heartbeat: Callable[..., None],
    go: gate.Go,
    *,
    patient: bool,
    reserved: Charge | None,
) -> Step:
    try:
        begun = _begin(operation, go, reserved=reserved)
    except IntegrityError as error:
        if TWIN_CONSTRAINT not in str(error):
            raise
        return _meet_twin(operation_with_arguments(operation.id)[0], patient=patient)
    return _permission(operation, arguments, heartbeat) if begun else _as_it_is(operation.id)


def _meet_twin(operation: Operation, *, patient: bool) -> Step:
    """The repeat guard: the same call of the project is out, or its effect is not known."""
    twin = twins.unclear(operation)
    if patient and (twin is None or twin.state == STATE.DISPATCHED):
        return Held(operation.id, twin.id if twin else operation.id)
    if twin is None:
        return _as_it_is(operation.id)
    fate = "is still unclear" if twin.state == STATE.UNCERTAIN else "has no outcome yet"
    message = f"operation {twin.id} made the same call and {fate}"
    return _close(operation, gate.Stop(STATE.BLOCKED, "unresolved_twin", message))


def _close(operation: Operation, stop: gate.Stop) -> Settled:
    """Write that a call will not leave. One that was reconciled has left before, so it can only be blocked."""
    state = STATE.BLOCKED if operation.state == STATE.RECONCILED else stop.state
    cut = visible(stop.message)[:ERROR_MESSAGE_CHARS_MAX]
    with transaction.atomic(savepoint=False):
        _hold_run(operation)
        approvals.void(operation.id)
        if _move(operation, state, error_class=stop.error_class, error_message=cut, settled_at=Now()):
            outbox.append([journal.blocked(operation)])
        else:
            transaction.set_rollback(True)  # somebody was faster: the yes is theirs
    return _as_it_is(operation.id)


def _ask(operation: Operation, ask: gate.Ask) -> Settled:
    """Put the call before a person, in the place of an earlier yes if there was one; not for a run that is to stop."""
    judged = {
        "policy": ask.answer.policy,
        "policy_id": ask.answer.policy_id,
        "policy_version": ask.answer.policy_version,
        "policy_answer": ask.answer.answer,
    }
    with transaction.atomic(savepoint=False):
        stopped = _hold_run(operation)
        approvals.void(operation.id)
        if not stopped and _move(operation, STATE.AWAITING_APPROVAL, **judged):
            approvals.request(ask.request)
        else:
            transaction.set_rollback(True)  # somebody was faster: the yes is theirs
    return _as_it_is(operation.id)


def _hold_run(operation: Operation) -> bool:
    """Lock the run first, as everybody does; whether it was asked to stop. A cancel that comes now waits for us."""
    ((is_to_stop,),) = rows(HERE, "hold_run", {"run_id": operation.run_id})
    return bool(is_to_stop)


def _begin(
    operation: Operation,
    go: gate.Go,
    *before: NewEvent,
    unclear: bool = False,
    unsent: bool = False,
    reserved: Charge | None = None,
) -> bool:
    """The counted UPDATE and its event, one statement. False: the run was cancelled, somebody was faster, or what was
    checked does not stand any more."""
    values: dict[str, Any] = {
        "run_id": operation.run_id,
        "operation_id": operation.id,
        "state": operation.state,
        "attempt": operation.attempt,
        "timeout_seconds": timeout_seconds(operation),
        "arguments_digest": operation.arguments_digest,
        "approval_id": go.approval_id,
        "unclear": unclear,
        "unsent": unsent,
        "tokens": reserved.tokens if reserved else None,
        "cost": reserved.cost if reserved else None,
    }
    operation.attempt += 1
    events = [*before, journal.started(operation)]
    found = rows(HERE, "begin_attempt", values | {"events": outbox.given(events)})
    if not found:
        operation.attempt -= 1
        return False
    _begun(operation, events, found)
    return True


def _begun(operation: Operation, events: Sequence[NewEvent], found: Sequence[tuple[Any, ...]]) -> None:
    """Take over what the database wrote."""
    outbox.verify(events, [told for *_, told in found])
    operation.dispatched_at, operation.first_dispatched_at, operation.deadline_at, _ = found[0]
    operation.state, operation.sending_at = STATE.DISPATCHED, None


def timeout_seconds(operation: Operation) -> float:
    """How long one attempt may take."""
    if operation.tool is not None:
        return float(operation.tool.timeout_seconds)
    return float(operation.run.agent_version.definition["model_timeout_seconds"])


def permission_to_probe(operation_id: UUID) -> Dispatch:
    """The same call as it was dispatched, for a look at the other side; its `sending` raises Superseded."""
    return _permission(*operation_with_arguments(operation_id), lambda *_: None)


def _permission(operation: Operation, arguments: bytes, heartbeat: Callable[..., None]) -> Dispatch:
    assert operation.deadline_at is not None

    async def sending() -> None:
        if marks_sending(operation):
            faults.reach("before_sending_mark", operation.name)
            await in_thread(mark_sending, operation.id, operation.attempt)
            faults.reach("after_sending_mark", operation.name)
        elif operation.effect == "write":
            await in_thread(check_sending, operation.id, operation.attempt, timeout_seconds(operation))
        faults.reach("before_send", operation.name)

    return Dispatch(
        operation_id=operation.id,
        run_id=operation.run_id,
        project_id=operation.project_id,
        attempt=operation.attempt,
        tool=operation.name,
        arguments=parse_json(arguments),
        configuration=_configuration(operation),
        timeout_seconds=timeout_seconds(operation),
        deadline_at=operation.deadline_at,
        workspace=str(workspaces.path(operation.run)),
        sending=sending,
        heartbeat=heartbeat,
        kind=operation.kind,
        record=operation,
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
        "effect": operation.effect,
    }
    if tool.server is not None:
        known["server"] = {**tool.server.configuration, "name": tool.server.name}
        known["definition_digest"] = tool.definition_digest
    return known


def marks_sending(operation: Operation) -> bool:
    """Whether `sending()` commits a mark: of a write that the other side could not recognise when repeated."""
    return operation.effect == "write" and not operation.idempotent_for_seconds


class Superseded(Exception):
    """The attempt is no longer the current one: it must not send."""


def mark_sending(operation_id: UUID, attempt: int) -> None:
    """Write down that the first byte may leave now. Until then a crash is provably `NotSent`.

    Nothing may leave when it raises: Superseded when another attempt has taken over, NotSent when the run was asked to
    stop since the dispatch.
    """
    if rows(HERE, "mark_sending", {"operation_id": operation_id, "attempt": attempt}):
        return
    if Operation.objects.filter(id=operation_id, state=STATE.DISPATCHED, attempt=attempt).exists():
        raise NotSent("the run was asked to stop before the call was sent")
    raise Superseded(f"attempt {attempt} of operation {operation_id} is not the current one any more")


def check_sending(operation_id: UUID, attempt: int, timeout_seconds: float) -> None:
    """Look once more, right before the first byte of a write with a key: its worker may have been frozen since.

    Nothing may leave when it raises: Superseded when the attempt is not the current one any more, NotSent when the run
    was asked to stop or the key may be forgotten before the attempt has ended.
    """
    values = {"operation_id": operation_id, "attempt": attempt, "timeout_seconds": timeout_seconds}
    if not (found := rows(HERE, "check_sending", values)):
        raise Superseded(f"attempt {attempt} of operation {operation_id} is not the current one any more")
    is_live, key_lasts = found[0]
    if not is_live:
        raise NotSent("the run was asked to stop before the call was sent")
    if not key_lasts:
        raise NotSent("the other side may forget the call's key before this attempt has ended")


def settle_answer(given: Dispatch, result: EffectResult, spent: Charge | None = None, **facts: Any) -> Settled:
    """Write the answer of an attempt: the effect happened, or the tool itself says that it failed.

    `spent` counts against the run's limits: what another agent used for it. A stale attempt changes nothing, is kept as
    evidence, and ends an uncertain operation.
    """
    packed = pack(result)
    state = STATE.TOOL_ERROR if result.is_error else STATE.SUCCEEDED
    error_class = "tool_error" if result.is_error else ""
    effect = error_effect(given, result) if result.is_error else "occurred"
    operation = _outcome(
        given, state, error_class=error_class, result_digest=packed.record.digest, result_invalid=packed.invalid
    )
    terminal = journal.failed(operation, effect, **facts) if result.is_error else journal.completed(operation, **facts)
    if effect == "uncertain":
        if _settle_doubt(Unclear(given, error_class, result.text)):
            return Settled(given.operation_id, STATE.UNCERTAIN)
    elif _settle(operation, terminal, packed.bodies, denies=effect == "none", spent=spent):
        return Settled(operation.id, state)
    if effect == "none" and (doubted := _doubted(given, error_class, result.text)):
        return doubted
    with transaction.atomic(savepoint=False):
        artifacts.claim(given.run_id, Artifact.Kind.RESULT, packed.bodies)
        return _late(given, effect, packed, error_class)


def settle_model_answer(
    given: Dispatch, kept: artifacts.Staged, facts: dict[str, Any], spent: Charge | None = None
) -> Settled:
    """Write the answer of a model call; `facts` are provider, latency and usage, `spent` is what it really used, if the
    provider said so. Joins the caller's transaction."""
    operation = _outcome(given, STATE.SUCCEEDED, result_digest=kept.digest, usage=facts["usage"])
    settled = _settle(operation, journal.completed(operation, **facts), [kept], spent=spent)
    return Settled(operation.id, operation.state) if settled else _as_it_is(operation.id)


def error_effect(given: Dispatch, result: EffectResult) -> Effect:
    """What an error answer says about the effect of its call (docs/decisions/0003).

    A read has none, and of a write that we ended ourselves nobody knows. Else the server's word "error" counts as none,
    unless the registry knew better of this tool when the call was made.
    """
    if given.configuration.get("effect") == "read":
        return "none"
    said = "uncertain" if result.cut_short else declared.error_effect(given.record)
    return "occurred" if said == "occurred" else "uncertain" if said == "uncertain" else "none"


def settle_failure(
    given: Dispatch,
    error_class: str,
    message: str,
    usage: dict[str, Any] | None = None,
    spent: Charge | None = None,
) -> Settled:
    """Write that an attempt is taken to have had no effect. A stale attempt changes nothing.

    The operation is uncertain then if an earlier attempt of it may have had its effect.
    """
    settled = _without_effect(given, error_class, message, usage, spent=spent)
    return settled or _as_it_is(given.operation_id)


def settle_unsent(unclear: Unclear) -> Settled | Unclear:
    """Write that an attempt had no effect because it has not said that it sends; unclear as before if it has by now."""
    given = unclear.dispatch
    if settled := _without_effect(given, unclear.error_class, unclear.message, unsent=True):
        return settled
    return unclear if _is_sending(given) else _as_it_is(given.operation_id)


def settle_not_done(given: Dispatch, error_class: str, message: str) -> Settled:
    """Write that an attempt provably had no effect; of a stale attempt too this is evidence, and may end it."""
    if settled := _without_effect(given, error_class, message):
        return settled
    with transaction.atomic(savepoint=False):
        return _late(given, "none", None, error_class)


def _without_effect(
    given: Dispatch,
    error_class: str,
    message: str,
    usage: dict[str, Any] | None = None,
    *,
    unsent: bool = False,
    spent: Charge | None = None,
) -> Settled | None:
    """None: the attempt is stale, or has said meanwhile that it sends."""
    operation = _outcome(given, STATE.FAILED, error_class=error_class, error_message=message, usage=usage)
    if _settle(operation, journal.failed(operation, "none"), denies=True, unsent=unsent, spent=spent):
        return Settled(operation.id, STATE.FAILED)
    return None if unsent and _is_sending(given) else _doubted(given, error_class, message)


def _doubted(given: Dispatch, error_class: str, message: str) -> Settled | None:
    """The attempt had no effect, but an earlier one may have had it: the operation is uncertain. None: it is not so."""
    current = Operation.objects.filter(id=given.operation_id, state=STATE.DISPATCHED, attempt=given.attempt)
    if not current.filter(earlier_unclear=True).exists():
        return None
    return settle_uncertain(Unclear(given, error_class, EARLIER + message))


def settle_uncertain(unclear: Unclear) -> Settled:
    """Write that an attempt may or may not have had its effect. From here only a probe, a late result or a named
    person goes on."""
    if _settle_doubt(unclear):
        return Settled(unclear.dispatch.operation_id, STATE.UNCERTAIN)
    return _as_it_is(unclear.dispatch.operation_id)


def _settle_doubt(unclear: Unclear) -> bool:
    operation = _outcome(
        unclear.dispatch, STATE.UNCERTAIN, error_class=unclear.error_class, error_message=unclear.message
    )
    return _settle(operation, journal.failed(operation, "uncertain"))


def _outcome(given: Dispatch, state: Operation.State, **values: Any) -> Operation:
    """The row of the attempt as it is to become; nothing of it is written yet."""
    operation: Operation = given.record
    operation.state, operation.attempt = state, given.attempt
    operation.result_digest = values.get("result_digest", "")
    operation.result_invalid = values.get("result_invalid", "")
    operation.error_class = values.get("error_class", "")
    message = echoes.without(values.get("error_message", ""), given.arguments)
    operation.error_message = visible(message)[:ERROR_MESSAGE_CHARS_MAX]
    operation.usage = values.get("usage") or {}
    return operation


def _settle(
    outcome: Operation,
    event: NewEvent,
    bodies: Sequence[artifacts.Staged] = (),
    *,
    denies: bool = False,
    unsent: bool = False,
    spent: Charge | None = None,
) -> bool:
    """Compare-and-set on (dispatched, this attempt), with its event and bodies, one statement. False: it is stale, or
    it `denies` an effect that an earlier attempt may have had, or it is not `unsent` any more."""
    found = rows(
        HERE,
        "settle",
        {
            "operation_id": outcome.id,
            "attempt": outcome.attempt,
            "state": outcome.state,
            "result_digest": outcome.result_digest,
            "result_invalid": outcome.result_invalid,
            "error_class": outcome.error_class,
            "error_message": outcome.error_message,
            "usage": json.dumps(outcome.usage) if outcome.usage else None,
            "tokens": spent.tokens if spent else None,
            "cost": spent.cost if spent else None,
            "probe_after_seconds": PROBE_FIRST_AFTER_SECONDS,
            "denies": denies,
            "unsent": unsent,
            "bodies": artifacts.claims(bodies),
            "events": outbox.given([event]),
        },
    )
    outbox.verify([event], [told for (told,) in found])
    return bool(found)


def _move(operation: Operation, state: Operation.State, **values: Any) -> bool:
    """A counted UPDATE from the state that was read; false if somebody got there first."""
    moved = Operation.objects.filter(id=operation.id, state=operation.state, attempt=operation.attempt).update(
        state=state, **values
    )
    if moved == 1:
        operation.state = state
        operation.error_class = values.get("error_class", operation.error_class)
    return moved == 1


def _late(given: Dispatch, effect: Effect, packed: Packed | None, error_class: str) -> Settled:
    """A stale attempt learnt its outcome after all."""
    from runs.boundary import reconcile

    operation = Operation.objects.select_for_update(no_key=True).get(id=given.operation_id)
    digest = packed.record.digest if packed else ""
    if operation.attempt == given.attempt and (operation.result_digest, operation.error_class) == (digest, error_class):
        return Settled(operation.id, operation.state)  # our own settle, whose commit nobody heard of
    outbox.append([journal.late_result(operation, given.attempt, effect, digest, error_class)])
    reconcile.by_late_result(operation, given.attempt, effect, digest)
    return _as_it_is(operation.id)


def _as_it_is(operation_id: UUID) -> Settled:
    return Settled(operation_id, Operation.objects.values_list("state", flat=True).get(id=operation_id))

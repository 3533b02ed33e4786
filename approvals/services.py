"""Ask a person, and take the answer: once, in time, by somebody who may. Performs nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid5

from django.db import transaction
from django.db.models import DateTimeField, Func
from django.db.models.functions import Now

from approvals.contracts import Decider, Request, Verdict
from approvals.models import Approval, Decision
from approvals.signals import resolved
from kernel_project.primitives.canonical import sha256_hex
from kernel_project.primitives.clock import wire_time
from kernel_project.primitives.errors import Conflict, Forbidden, Invalid, NotFound
from outbox import services as outbox
from outbox.contracts import KERNEL, Actor, NewEvent

EXPIRE_BATCH_MAX = 200  # requests that one expiry transaction takes
REASON_BYTES_MAX = 10_000
EVENT_TYPES = {
    Approval.State.GRANTED: "approval.granted",
    Approval.State.REJECTED: "approval.rejected",
    Approval.State.EXPIRED: "approval.timed_out",
    Approval.State.WITHDRAWN: "approval.rejected",
}


class AlreadyDecided(Conflict):
    """Somebody was faster; `details` say who, when and what."""

    code = "already_decided"


class Expired(Conflict):
    """The deadline has passed: the attempt is on record and was not applied."""

    code = "expired"


class Refused(Forbidden):
    """This person may not decide this request; the attempt is on record."""

    code = "may_not_decide"


def request(asked: Request) -> Approval:
    """Put a call before a person, inside the transaction that writes its operation.

    A repeat for the same operation returns the request that stands; after `void` there is none, and a new one is made.
    """
    others = Approval.objects.filter(operation_id=asked.operation_id)
    if standing := others.exclude(state=Approval.State.VOIDED).first():
        return standing
    number = others.count() + 1
    approval = Approval.objects.create(
        id=uuid5(asked.operation_id, "approval" if number == 1 else f"approval/{number}"),
        operation_id=asked.operation_id,
        project=asked.project,
        run_id=asked.run_id,
        agent=asked.agent,
        tool=asked.tool,
        effect=asked.effect,
        binding=asked.binding,
        binding_hash=sha256_hex(asked.binding.encode()),
        arguments_hash=asked.arguments_hash,
        policy_id=asked.policy.policy_id,
        policy_name=asked.policy.policy,
        group=asked.policy.group,
        four_eyes=asked.policy.four_eyes,
        on_expiry=asked.policy.on_expiry,
        requested_by=asked.requested_by,
        deadline_at=Now() + timedelta(seconds=asked.policy.deadline_seconds),
    )
    approval.refresh_from_db()  # the deadline by the database clock
    told = {"deadline_at": _text(approval.deadline_at), "status": "waiting", "on_expiry": approval.on_expiry}
    outbox.append([_event(approval, "approval.requested", KERNEL, told)])
    return approval


def void(operation_id: UUID) -> bool:
    """Take a yes back, inside the caller's transaction, because the call is no longer the one that was approved."""
    granted = Approval.objects.filter(operation_id=operation_id, state=Approval.State.GRANTED)
    if (approval := granted.select_for_update(no_key=True).first()) is None:
        return False
    approval.state = Approval.State.VOIDED
    approval.save(update_fields=["state"])
    told = {"status": "voided", "reason": "the call is no longer the one that was approved"}
    outbox.append([_event(approval, "approval.rejected", KERNEL, told, subject=f"{approval.id}/voided")])
    return True


def decide(approval_id: UUID, project: str, decider: Decider, verdict: Verdict, reason: str = "") -> Approval:
    """Take one person's yes or no. Exactly one outcome, whatever the race.

    The same person saying the same again gets the first answer. Raises NotFound for an absent or foreign request,
    AlreadyDecided, Expired (exactly at the deadline is late) and Refused; each of the last three is recorded, which is
    why this must be the outermost transaction: inside another one it refuses to run (RuntimeError).
    """
    _check_reason(reason)
    with transaction.atomic(durable=True):
        approval, at = _lock(approval_id, project)
        refusal = _refusal(approval, at, decider, verdict)
        if refusal is None and approval.state == Approval.State.WAITING:
            return _apply(approval, at, decider, verdict, reason)
        if refusal is not None:
            _record(approval, decider, verdict, reason, refusal=refusal.error_code)
    if refusal is not None:
        raise refusal
    return approval  # the same answer, given again


def _check_reason(reason: str) -> None:
    if "\x00" in reason or any("\ud800" <= letter <= "\udfff" for letter in reason):
        raise Invalid("the reason holds NUL or half a character")
    if len(reason.encode()) > REASON_BYTES_MAX:
        raise Invalid(f"the reason is longer than {REASON_BYTES_MAX} bytes")


def _lock(approval_id: UUID, project: str) -> tuple[Approval, datetime]:
    """The request and the database's time, taken after the lock was had."""
    found = Approval.objects.select_for_update(no_key=True).filter(id=approval_id, project=project).first()
    if found is None:
        raise NotFound("there is no such approval request")
    at: datetime = Approval.objects.filter(id=approval_id).values_list(_clock(), flat=True)[0]
    return found, at


def _refusal(approval: Approval, at: datetime, decider: Decider, verdict: Verdict) -> Conflict | Forbidden | None:
    if why := _may_not(approval, decider, verdict):
        return Refused(why)
    wanted = Approval.State.GRANTED if verdict == "approve" else Approval.State.REJECTED
    if approval.state == Approval.State.WAITING:
        late = at >= approval.deadline_at
        return Expired(f"the deadline was {_text(approval.deadline_at)}; nothing was applied") if late else None
    if approval.state == wanted and approval.decided_by == decider.name:
        return None
    if approval.state == Approval.State.EXPIRED:
        return Expired(f"the deadline was {_text(approval.deadline_at)}; nothing was applied")
    return AlreadyDecided(
        f"{approval.state} by {approval.decided_by} at {_text(approval.decided_at)}",
        state=approval.state,
        decided_by=approval.decided_by,
        decided_at=_text(approval.decided_at),
    )


def _may_not(approval: Approval, decider: Decider, verdict: Verdict) -> str:
    if approval.group and approval.group not in decider.groups and not decider.superuser:
        return f"only members of the group {approval.group!r} may decide this request"
    own = approval.requested_by in decider.names | {decider.name}
    if approval.four_eyes and own and verdict == "approve":
        return "who started the run may not approve its calls"
    return ""


def _apply(approval: Approval, at: datetime, decider: Decider, verdict: Verdict, reason: str) -> Approval:
    state = Approval.State.GRANTED if verdict == "approve" else Approval.State.REJECTED
    _record(approval, decider, verdict, reason)
    _move(approval, state, at, decider.name, reason)
    actor = Actor(id=decider.name, type="human")
    outbox.append([_event(approval, EVENT_TYPES[state], actor, {"status": state.value, "via": decider.via})])
    return approval


def _record(approval: Approval, decider: Decider, verdict: Verdict, reason: str, refusal: str = "") -> None:
    Decision.objects.create(
        approval=approval, actor=decider.name, verdict=verdict, reason=reason, via=decider.via,
        applied=not refusal, refusal=refusal,
    )  # fmt: skip


def expire_due(limit: int = EXPIRE_BATCH_MAX) -> int:
    """End requests whose deadline has passed; returns how many. Safe beside itself and beside the workflow's timer.

    Each in a transaction of its own: one holds the locks of one run only, so two ticks cannot wait for each other.
    """
    due = Approval.objects.filter(state=Approval.State.WAITING, deadline_at__lte=_clock()).order_by("deadline_at")
    return sum(expire([operation_id]) for operation_id in list(due.values_list("operation_id", flat=True)[:limit]))


def expire(operation_ids: Sequence[UUID]) -> int:
    """End the requests of these operations, which are of one run, whose deadline has passed; returns how many."""
    with transaction.atomic():
        due = Approval.objects.filter(
            operation_id__in=operation_ids, state=Approval.State.WAITING, deadline_at__lte=_clock()
        )
        return _end(due.order_by("id").select_for_update(no_key=True), Approval.State.EXPIRED, "deadline")


def withdraw(run_id: UUID, by: str) -> int:
    """Take back all waiting requests of a run, inside the transaction that cancels it."""
    waiting = Approval.objects.filter(run_id=run_id, state=Approval.State.WAITING)
    return _end(waiting.order_by("id").select_for_update(no_key=True), Approval.State.WITHDRAWN, by)


def _end(approvals: Iterable[Approval], state: Approval.State, by: str) -> int:
    ended = []
    for approval in approvals:
        _move(approval, state, _clock(), by, "")
        ended.append(_event(approval, EVENT_TYPES[state], KERNEL, {"status": state.value, "by": by}))
    outbox.append(ended)
    return len(ended)


def _move(approval: Approval, state: Approval.State, at: Any, by: str, reason: str) -> None:
    moved = Approval.objects.filter(id=approval.id, state=Approval.State.WAITING).update(
        state=state, decided_at=at, decided_by=by, reason=reason
    )
    assert moved == 1, "the row lock is held"
    approval.refresh_from_db()
    resolved.send(Approval, approval=approval)


def _event(
    approval: Approval, event_type: str, actor: Actor, more: dict[str, Any], subject: UUID | str = ""
) -> NewEvent:
    return NewEvent(
        run_id=approval.run_id,
        project=approval.project,
        type=event_type,
        subject=subject or approval.id,
        operation_id=approval.operation_id,
        actor=actor,
        data={
            "tool": approval.tool,
            "arguments_hash": approval.arguments_hash,
            "policy": approval.policy_name,
            "group": approval.group,
            **more,
        },
    )


def _clock() -> Func:
    """The database's time now; Now() would be the statement's begin, before a lock was waited for."""
    return Func(function="clock_timestamp", output_field=DateTimeField())


def _text(moment: datetime | None) -> str:
    return wire_time(moment) if moment else ""

"""Ask a person, and take the answer: once, in time, by somebody who may. Performs nothing."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID, uuid5

from django.db import IntegrityError, transaction
from django.db.models import DateTimeField, Func
from django.db.models.functions import Now

from approvals import announcements, calls, people
from approvals.contracts import Decider, Request, Verdict
from approvals.models import Approval, Decision, Expiry
from approvals.signals import resolved
from kernel_project.primitives.canonical import sha256_hex
from kernel_project.primitives.clock import wire_time
from kernel_project.primitives.errors import Conflict, Forbidden, Invalid, NotFound
from outbox import services as outbox
from outbox.contracts import KERNEL, Actor, NewEvent

logger = logging.getLogger(__name__)

EXPIRE_BATCH_MAX = 200  # requests that one expiry tick takes
EDITS_MAX = 20  # edits of one call; each starts the deadline anew, so they must come to an end
LOCK_ROUNDS_MAX = 50  # looks for requests that took the place of locked ones; each has a locked predecessor
REASON_BYTES_MAX = 64 * 1024
EVENT_TYPES = {
    Approval.State.GRANTED: "approval.granted",
    Approval.State.REJECTED: "approval.rejected",
    Approval.State.EXPIRED: "approval.timed_out",
    Approval.State.WITHDRAWN: "approval.rejected",
    Approval.State.SUPERSEDED: "approval.rejected",
    Approval.State.ESCALATED: "approval.timed_out",
}
OUTCOMES: dict[str, Approval.State] = {"approve": Approval.State.GRANTED, "reject": Approval.State.REJECTED}
DEADLINE_MIN = timedelta(seconds=1)
# What a request that takes another one's place does not take over from it.
OWN_COLUMNS = frozenset({"id", "state", "requested_at", "deadline_at", "decided_at", "decided_by", "reason"})
Try = Literal["approve", "reject", "edit"]
RISKS = {"read": Approval.Risk.LOW, "write": Approval.Risk.MEDIUM}


class AlreadyDecided(Conflict):
    """Somebody was faster; `details` say who, when and what."""

    code = "already_decided"


class Expired(Conflict):
    """The deadline has passed: the attempt is on record and was not applied."""

    code = "expired"


class Refused(Forbidden):
    """This person may not decide this request; the attempt is on record."""

    code = "may_not_decide"


class AlreadyVoted(Conflict):
    """One person's yes counts once, so it cannot break the glass as well; the attempt is on record."""

    code = "already_voted"


class Damaged(Conflict):
    """The stored text of the call is not the one that was asked about: nobody may say yes to it."""

    code = "damaged_request"


def request(asked: Request) -> Approval:
    """Put a call before a person, inside the transaction that writes its operation.

    A repeat for the same operation returns the request that stands; after one that was replaced a new one is made.
    """
    others = Approval.objects.filter(operation_id=asked.operation_id)
    if standing := others.exclude(state__in=Approval.REPLACED).first():
        return standing
    last = others.order_by("-requested_at", "-id").first()
    return _open(asked, supersedes=last.id, edited_by=last.edited_by) if last else _open(asked)


def _open(asked: Request, **more: Any) -> Approval:
    policy = asked.policy
    return _create(
        operation_id=asked.operation_id,
        project=asked.project,
        run_id=asked.run_id,
        agent=asked.agent,
        tool=asked.tool,
        effect=asked.effect,
        binding=asked.binding,
        binding_hash=sha256_hex(asked.binding.encode()),
        arguments_hash=asked.arguments_hash,
        policy_id=policy.policy_id,
        policy_name=policy.policy,
        group=policy.group,
        quorum=policy.quorum,
        four_eyes=policy.four_eyes,
        break_glass=policy.break_glass,
        on_expiry=policy.on_expiry,
        escalate_to=policy.escalate_to,
        risk=_risk(asked),
        idempotent_for_seconds=asked.idempotent_for_seconds,
        probes=asked.probes,
        requested_by=asked.requested_by,
        deadline_at=Now() + timedelta(seconds=policy.deadline_seconds),
        **more,
    )


def _create(*, operation_id: UUID, **columns: Any) -> Approval:
    """One more request of the call, told and announced."""
    number = Approval.objects.filter(operation_id=operation_id).count() + 1
    approval = Approval.objects.create(
        id=uuid5(operation_id, "approval" if number == 1 else f"approval/{number}"),
        operation_id=operation_id,
        **columns,
    )
    approval.refresh_from_db()  # the deadline by the database clock
    announcements.write(approval)
    told: dict[str, Any] = {
        "deadline_at": _text(approval.deadline_at),
        "status": "waiting",
        "on_expiry": approval.on_expiry,
        "quorum": approval.quorum,
    }
    if approval.supersedes:
        told["supersedes"] = str(approval.supersedes)
    actor = Actor(id=approval.edited_by, type="human") if approval.edited_by else KERNEL
    outbox.append([_event(approval, "approval.requested", actor, told)])
    return approval


def _risk(asked: Request) -> Approval.Risk:
    opaque = asked.effect == "write" and not asked.idempotent_for_seconds and not asked.probes
    return Approval.Risk.HIGH if opaque or asked.twin else RISKS[asked.effect]


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


def decide(
    approval_id: UUID,
    project: str,
    decider: Decider,
    verdict: Verdict,
    reason: str = "",
    *,
    break_glass: bool = False,
) -> Approval:
    """Take one person's yes or no. Exactly one outcome, whatever the race.

    With a quorum, the request waits until enough people have said yes; one no ends it. `break_glass` grants it alone
    and past the group, where its policy and the person's rights provide for that; never past four eyes or the deadline.
    The same person saying the same again gets the first answer. Raises NotFound for an absent or foreign request,
    AlreadyDecided, Expired (exactly at the deadline is late), Refused, AlreadyVoted (for the one who breaks the glass
    after a yes) and Damaged; each of the last five is recorded, which is why this must be the outermost
    transaction: inside another one it refuses to run (RuntimeError).
    """
    _check_reason(reason)
    if break_glass and (verdict != "approve" or not reason.strip()):
        raise Invalid("breaking the glass is a yes that says why")
    with transaction.atomic(durable=True):
        approval, at = _lock(approval_id, project)
        votes = _votes(approval)
        refusal = _refusal(approval, at, decider, verdict, break_glass=break_glass)
        if refusal is None and break_glass and approval.state == Approval.State.WAITING and _is_among(votes, decider):
            refusal = AlreadyVoted("you have said yes to it: who breaks the glass is somebody who has not")
        if refusal is not None:
            _record(approval, decider, verdict, reason, refusal=refusal.error_code)
        elif approval.state == Approval.State.WAITING and not (verdict == "approve" and _is_among(votes, decider)):
            enough = break_glass or len(votes) + 1 >= approval.quorum
            _apply(approval, at, decider, verdict, reason, enough=enough, broke_glass=break_glass)
    if refusal is not None:
        raise refusal
    return approval  # decided, one vote nearer, or the same answer given again


def edit(approval_id: UUID, project: str, decider: Decider, arguments: Any, reason: str = "") -> Approval:
    """Put other arguments in the place of those that were asked about; returns the new request, which supersedes.

    Whoever may reject may edit; with four eyes, who edited may not approve. Raises what `decide` raises, and Invalid
    for arguments that do not fit the tool. It must be the outermost transaction, too.
    """
    _check_reason(reason)
    standing = Approval.objects.filter(id=approval_id, project=project).first()
    if standing is None:
        raise NotFound("there is no such approval request")
    rewrite: calls.Rewrite | None = None
    if standing.state == Approval.State.WAITING and not why_not(standing, decider, "edit"):
        rewrite = calls.owner().edited(standing, arguments, decider.name)
    with transaction.atomic(durable=True):
        approval, at = _lock(approval_id, project)
        refusal = _refusal(approval, at, decider, "edit") or _edited_enough(approval)
        if refusal is None:
            assert rewrite is not None, "a request never goes back to waiting"
            return _supersede(approval, at, decider, reason, rewrite)
        _record(approval, decider, "edit", reason, refusal=refusal.error_code)
    raise refusal


def _edited_enough(approval: Approval) -> Conflict | None:
    others = Approval.objects.filter(operation_id=approval.operation_id).exclude(edited_by="").count()
    return Conflict(f"a call can be edited {EDITS_MAX} times") if others >= EDITS_MAX else None


def _supersede(approval: Approval, at: datetime, decider: Decider, reason: str, rewrite: calls.Rewrite) -> Approval:
    asked = rewrite(approval)
    _record(approval, decider, "edit", reason)
    _move(approval, Approval.State.SUPERSEDED, at, decider.name, reason)
    told = {"status": "superseded", "via": decider.via}
    event = _event(approval, EVENT_TYPES[Approval.State.SUPERSEDED], Actor(id=decider.name, type="human"), told)
    outbox.append([event])
    return _open(asked, supersedes=approval.id, edited_by=decider.name)


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


def _refusal(
    approval: Approval, at: datetime, decider: Decider, verdict: Try, *, break_glass: bool = False
) -> Conflict | Forbidden | None:
    if why := why_not(approval, decider, verdict, break_glass=break_glass):
        return Refused(why)
    if approval.state == Approval.State.WAITING:
        if at >= approval.deadline_at:
            return _late(approval)
        return _damage(approval) if verdict == "approve" else None
    if _said_before(approval, decider, verdict):
        return None
    if approval.state in (Approval.State.EXPIRED, Approval.State.ESCALATED):
        return _late(approval)
    return AlreadyDecided(
        f"{approval.state} by {approval.decided_by} at {_text(approval.decided_at)}",
        state=approval.state,
        decided_by=approval.decided_by,
        decided_at=_text(approval.decided_at),
    )


def _said_before(approval: Approval, decider: Decider, verdict: Try) -> bool:
    """Whether this is what this person has said, and what came of it."""
    if verdict == "approve":
        return approval.state == Approval.State.GRANTED and has_voted(approval, decider)
    return verdict == "reject" and approval.state == Approval.State.REJECTED and approval.decided_by == decider.name


def _late(approval: Approval) -> Expired:
    return Expired(f"the deadline was {_text(approval.deadline_at)}; nothing was applied")


def damaged(approval: Approval) -> bool:
    """Whether the stored text is not the one that was asked about."""
    return sha256_hex(approval.binding.encode()) != approval.binding_hash


def _damage(approval: Approval) -> Damaged | None:
    if not damaged(approval):
        return None
    return Damaged("the stored text of this call is damaged: it can be rejected, not approved")


def why_not(approval: Approval, decider: Decider, verdict: Try, *, break_glass: bool = False) -> str:
    """Why this person may not do that to this request, whatever its state; empty if they may."""
    if break_glass and not (approval.break_glass and decider.may_break_glass):
        return "the policy or your rights do not provide for breaking the glass"
    if approval.group and approval.group not in decider.groups and not break_glass:
        return f"only members of the group {approval.group} may decide this request"
    if approval.four_eyes and verdict == "approve":
        if is_own(approval.requested_by, decider):
            return "who started the run may not approve its calls"
        if is_own(approval.edited_by, decider):
            return "who wrote these arguments may not approve them"
    return ""


def is_own(name: str, decider: Decider) -> bool:
    """Whether this name is one of the decider's, in whatever case, under whatever account or key."""
    if not name:
        return False
    own = {alike.lower() for alike in people.same_person(decider.names | {decider.name})}
    return any(alike.lower() in own for alike in people.behind(name))


def _votes(approval: Approval) -> list[str]:
    """Who has said yes so far."""
    given = Decision.objects.filter(approval=approval, applied=True, verdict="approve")
    return list(given.values_list("actor", flat=True))


def has_voted(approval: Approval, decider: Decider) -> bool:
    """Whether this person has said yes to it before, under whatever name."""
    return _is_among(_votes(approval), decider)


def _is_among(votes: Sequence[str], decider: Decider) -> bool:
    return bool(votes) and not people.same_person(decider.names | {decider.name}).isdisjoint(votes)


def _apply(
    approval: Approval, at: datetime, decider: Decider, verdict: Verdict, reason: str, *, enough: bool,
    broke_glass: bool,
) -> None:  # fmt: skip
    state = OUTCOMES[verdict]
    _record(approval, decider, verdict, reason, broke_glass=broke_glass)
    actor = Actor(id=decider.name, type="human")
    told: dict[str, Any] = {"status": state.value, "via": decider.via}
    if broke_glass:
        told["break_glass"] = True
        logger.warning("%s broke the glass for request %s of %s", decider.name, approval.id, approval.project)
    if state == Approval.State.GRANTED and not enough:
        told |= {"status": "waiting", "quorum": approval.quorum}
        outbox.append([_event(approval, "approval.voted", actor, told, subject=f"{approval.id}/{decider.name}")])
        return
    _move(approval, state, at, decider.name, reason)
    outbox.append([_event(approval, EVENT_TYPES[state], actor, told)])


def _record(
    approval: Approval, decider: Decider, verdict: Try, reason: str, refusal: str = "", *, broke_glass: bool = False
) -> None:
    Decision.objects.create(
        approval=approval, actor=decider.name, verdict=verdict, reason=reason, via=decider.via,
        applied=not refusal, refusal=refusal, broke_glass=broke_glass,
    )  # fmt: skip


def expire_due(limit: int = EXPIRE_BATCH_MAX) -> int:
    """End requests whose deadline has passed; returns how many. Safe beside itself and beside the workflow's timer.

    Each in a transaction of its own: one holds the locks of one run only, so two ticks cannot wait for each other, and
    one that cannot be ended does not keep the others.
    """
    due = Approval.objects.filter(state=Approval.State.WAITING, deadline_at__lte=_clock()).order_by("deadline_at", "id")
    ended = 0
    for operation_id in list(due.values_list("operation_id", flat=True)[:limit]):
        try:
            ended += expire([operation_id])
        except (AssertionError, IntegrityError):
            logger.exception("the request for operation %s is over and cannot be ended", operation_id)
    return ended


def expire(operation_ids: Sequence[UUID]) -> int:
    """End the requests of these operations, which are of one run, whose deadline has passed; returns how many.

    A request whose policy escalates is passed on: it ends, and one to the other group takes its place.
    """
    with transaction.atomic():
        due = Approval.objects.filter(
            operation_id__in=operation_ids, state=Approval.State.WAITING, deadline_at__lte=_clock()
        )
        over = list(due.order_by("id").select_for_update(no_key=True))
        passed_on = [approval for approval in over if approval.on_expiry == Expiry.ESCALATE]
        for approval in passed_on:
            _escalate(approval)
        ended = [approval for approval in over if approval.on_expiry != Expiry.ESCALATE]
        return len(passed_on) + _end(ended, Approval.State.EXPIRED, "deadline")


def _escalate(approval: Approval) -> None:
    """Ask the next group the same, with as long a deadline; what nobody decides then is rejected."""
    columns = {
        field.attname: getattr(approval, field.attname)
        for field in Approval._meta.concrete_fields
        if field.attname not in OWN_COLUMNS
    }
    given = approval.deadline_at - approval.requested_at
    _end([approval], Approval.State.ESCALATED, "deadline")
    passed_on = {"group": approval.escalate_to, "on_expiry": Expiry.REJECT, "escalate_to": ""}
    deadline = Now() + max(given, DEADLINE_MIN)
    _create(**columns | passed_on | {"supersedes": approval.id, "deadline_at": deadline})


def withdraw(run_id: UUID, by: str) -> int:
    """Take back all waiting requests of a run, inside the transaction that cancels it."""
    return _end(_locked_waiting(run_id), Approval.State.WITHDRAWN, by)


def _locked_waiting(run_id: UUID) -> list[Approval]:
    """Lock every waiting request before any is moved, those too that took the place of another one meanwhile.

    An edit or an escalation that we waited for has left a request that our look before could not see; it is over when
    a look without locks finds nothing else, because whoever has not committed still leaves the old one to be seen.
    """
    held: dict[UUID, Approval] = {}
    for _ in range(LOCK_ROUNDS_MAX):
        waiting = Approval.objects.filter(run_id=run_id, state=Approval.State.WAITING).exclude(id__in=list(held))
        if not (seen := list(waiting.values_list("id", flat=True))):
            return list(held.values())
        found = waiting.filter(id__in=seen).order_by("id").select_for_update(no_key=True)
        held |= {approval.id: approval for approval in found}
    raise AssertionError(f"the requests of run {run_id} were replaced more than {LOCK_ROUNDS_MAX} times")


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
            **({"policy_id": str(approval.policy_id)} if approval.policy_id else {}),
            "group": approval.group,
            **more,
        },
    )


def _clock() -> Func:
    """The database's time now; Now() would be the statement's begin, before a lock was waited for."""
    return Func(function="clock_timestamp", output_field=DateTimeField())


def _text(moment: datetime | None) -> str:
    return wire_time(moment) if moment else ""

"""How a run is asked to stop, and how it ends: in one transaction each, with everything that follows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import Count, F
from django.db.models.functions import Now

from approvals import services as approvals
from kernel_project.primitives.errors import Conflict, NotFound
from outbox import services as outbox
from outbox.contracts import KERNEL, Actor
from runs import signals
from runs.boundary import artifacts, journal
from runs.boundary.reconcile import tell
from runs.loop import transcripts
from runs.loop.contracts import UNHEARD, FinishInput
from runs.loop.turns import limit_event, run_event
from runs.models import News, Operation, Run

STATE = Operation.State
REASON_CHARS_MAX = 1_000
IN_FLIGHT_STATES = (STATE.DISPATCHED,)
UNSENT_STATES = (STATE.PROPOSED, STATE.AWAITING_APPROVAL)
PARENT_LATE = "the time of the run that asked for it is over"
PARENT_ENDED = "the run that asked for it ended"
LIMIT_PREFIX = "limit_"
GONE = "gone"  # what a workflow ends in whose run was never told of: its start was refused and forgotten


def request_cancel(run_id: UUID, project: str, by: Actor, reason: str = "") -> Run:
    """Ask a run to stop: from the commit on no effect of it starts, and its waiting approvals are withdrawn.

    The same holds for all runs below it: other agents that do a task for it. Asking twice gives the same answer. Raises
    NotFound for an absent or foreign run, Conflict for one that has ended.
    """
    with transaction.atomic():
        run = Run.objects.select_for_update(no_key=True).filter(id=run_id, project_id=project).first()
        if run is None:
            raise NotFound("there is no such run")
        if run.cancel_requested_at is not None:
            return run
        if run.state in Run.ENDED:
            raise Conflict(f"the run has already {run.state}", state=run.state)
        _stop(run, by, reason)
    run.refresh_from_db()
    return run


def _stop(run: Run, by: Actor, reason: str) -> None:
    """Ask a locked run and all below it to stop. Locks go from parents to children, here and everywhere."""
    Run.objects.filter(id=run.id).update(
        state=Run.State.CANCELLING if run.state == Run.State.RUNNING else run.state,
        cancel_requested_at=Now(),
        cancel_requested_by=by.id,
        cancel_reason=reason[:REASON_CHARS_MAX],
    )
    approvals.withdraw(run.id, by.id)
    _withdraw_unsent(run)
    tell(run.id)
    transaction.on_commit(lambda: signals.news.send(Run, run_id=run.id, cancel=True))
    stop_children(run, by, reason)


def stop_children(run: Run, by: Actor, reason: str) -> None:
    """Ask all runs below a locked one to stop, in its transaction."""
    resuming = Run.objects.filter(parent_id=run.id, state=Run.State.FAILED, resuming_since__isnull=False)
    resuming.update(resuming_since=None, resumes=F("resumes") + 1)  # whoever resumes it finds that it did not
    live = Run.objects.filter(parent_id=run.id, state__in=Run.LIVE, cancel_requested_at__isnull=True)
    for child in live.select_for_update(no_key=True).order_by("id"):
        _stop(child, by, reason)


def close_calls(run_id: UUID) -> None:
    """The run's time is over: what has not left does not leave any more, and nobody is asked about it."""
    with transaction.atomic():
        run = Run.objects.select_for_update(no_key=True).get(id=run_id)
        if run.state == Run.State.RUNNING:
            approvals.withdraw(run.id, "the run's time is over")
            _withdraw_unsent(run, "the run's time is over.")
            stop_children(run, KERNEL, PARENT_LATE)


def _withdraw_unsent(run: Run, message: str = "") -> None:
    """Calls that were allowed, by policy or by a person, but did not leave yet."""
    unsent = Operation.objects.filter(run=run, state__in=UNSENT_STATES, position__gte=1)
    for operation in unsent.select_for_update(no_key=True).order_by("turn", "position"):
        moved = Operation.objects.filter(id=operation.id, state=operation.state).update(
            state=STATE.WITHDRAWN, error_class="withdrawn", error_message=message, settled_at=Now()
        )
        assert moved == 1, "the row lock is held"
        operation.state, operation.error_class = STATE.WITHDRAWN, "withdrawn"
        outbox.append([journal.blocked(operation)])


def in_flight(run_id: UUID, resumption: int) -> list[UUID]:
    """Operations that were dispatched and have no outcome yet; none if the run was resumed since."""
    mine = Operation.objects.filter(run_id=run_id, run__resumes=resumption, state__in=IN_FLIGHT_STATES)
    return list(mine.values_list("id", flat=True))


def finish(asked: FinishInput) -> str:
    """Write the end of a run, once; returns the state it ended in. A repeat changes nothing.

    UNHEARD: somebody said something that the model has not read, so this is not the end, and nothing is written. A run
    that was asked to stop ends as cancelled, whatever it came to; what is still unclear is counted and named.
    """
    with transaction.atomic():
        run = Run.objects.select_for_update(no_key=True).filter(id=asked.run_id).first()
        if run is None:
            return GONE
        if run.state in Run.ENDED or run.resumes != asked.resumption:
            return run.state
        may_hear = asked.outcome == "completed" and not asked.unheard and run.cancel_requested_at is None
        if may_hear and transcripts.unseen(run):
            return UNHEARD
        cancelled = run.cancel_requested_at is not None or asked.outcome == "cancelled"
        state = Run.State.CANCELLED if cancelled else Run.State(asked.outcome)
        cancelled_at = run.cancel_requested_at or (Now() if cancelled else None)
        result = _last_answer(run)
        approvals.withdraw(run.id, "the run ended")
        _withdraw_unsent(run, "" if cancelled else "the run had failed before this call was sent.")
        stop_children(run, KERNEL, PARENT_ENDED)
        if run.parent_id is not None:
            tell(run.parent_id)
        News.objects.filter(run_id=run.id).delete()
        Run.objects.filter(id=run.id).update(
            state=state,
            cancel_requested_at=cancelled_at,
            ended_at=Now(),
            result_digest=result,
            failure_code="" if state != Run.State.FAILED else asked.code,
            failure_message=_message(asked, _counted(run), cancelled=cancelled),
            waiting_for="",
            wake_since=None,
        )
        data: dict[str, Any] = {"status": state.value, "operations": _counted(run), "code": asked.code}
        if cancelled:
            data |= {"requested_by": run.cancel_requested_by, "reason": run.cancel_reason}
        if result:
            data["result_ref"] = artifacts.ref(result)
        reached = asked.code.removeprefix(LIMIT_PREFIX) if asked.code.startswith(LIMIT_PREFIX) else ""
        limit = [limit_event(run, reached)] if reached else []  # told before, unless even the last call did not fit
        end = run_event(run, f"run.{state.value}", data)
        outbox.append([*limit, replace(end, attempt=run.resumes + 1)])
    return state.value


def _counted(run: Run) -> dict[str, int]:
    """How many of the run's calls ended in each state: what was done, and what was not."""
    calls = Operation.objects.filter(run=run, position__gte=1)
    return dict(calls.order_by("state").values_list("state").annotate(Count("id")))


def _message(asked: FinishInput, counts: dict[str, int], *, cancelled: bool) -> str:
    unclear = counts.get(STATE.UNCERTAIN, 0)
    noun = "operation" if unclear == 1 else "operations"
    parts = ["cancelled"] if cancelled else [asked.message] if asked.message else []
    return ", ".join([*parts, f"{unclear} {noun} uncertain"] if unclear else parts)


def _last_answer(run: Run) -> str:
    """The artifact of the last thing the model said, if it said anything."""
    answered = Operation.objects.filter(run=run, position=0, state=STATE.SUCCEEDED).order_by("-turn")
    found: str | None = answered.values_list("result_digest", flat=True).first()
    return found or ""

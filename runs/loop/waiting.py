"""Say why a run does not move, so that none is stuck unseen; end those whose workflow is gone. Wakes nobody but a run
that was not told how its child ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from types import MappingProxyType
from uuid import UUID

from django.db import DatabaseError
from django.db.models.functions import Now

from approvals import selectors as approvals
from kernel_project.primitives.clock import now, wire_time
from kernel_project.primitives.errors import Unavailable
from runs.boundary.reconcile import tell
from runs.loop import agent_loop, delegations, endings, temporal
from runs.loop.contracts import FinishInput, Thought
from runs.models import Kind, Operation, Run

logger = logging.getLogger(__name__)

RUNS_MAX = 20_000  # live runs that one tick explains, the oldest first
BATCH = 500
LOOKS_MIN = 100  # of those that our rows do not explain, so many are asked about by each tick, and more of very many:
TICKS_MAX = 6  # within so many ticks, of 5 s each, Temporal was asked about every one of them …
LOOKS_MAX = 1_000  # … but no more than so many by one tick
QUIET = timedelta(seconds=5)  # a run that moved a moment ago needs no reason
STOPPING = timedelta(seconds=60)  # a call that was told to stop has long ended; after it, Temporal is asked
UNTOLD = timedelta(seconds=15)  # longer than it takes to take up how a child ended
UNTAKEN = timedelta(seconds=10)  # a task that nobody took for so long has no worker
TASK_FAILURES_MIN = 2  # one failure of a workflow's task may be chance
REASON_CHARS_MAX = 200
UNREACHABLE = "Temporal unreachable"
STATE = Operation.State


def explain() -> int:
    """Write `waiting_for` of live runs; returns how many do not move."""
    waiting, silent = 0, list[Run]()
    live = Run.objects.filter(state__in=Run.LIVE).select_related("agent_version").order_by("created_at", "id")
    for start in range(0, RUNS_MAX, BATCH):
        batch = list(live[start : start + BATCH])
        calls = _calls_of_turn(batch)
        granted = _granted(calls)
        children = _children(calls)
        for run in batch:
            reason = _reason(run, calls[run.id], granted, children)
            if reason is None:
                silent.append(run)
            else:
                _write(run, reason)
                waiting += bool(reason)
            if _has_untold_end(calls[run.id], children):
                tell(run.id)
        if len(batch) < BATCH:
            break
    return waiting + _ask_temporal(silent)


def _calls_of_turn(runs: Sequence[Run]) -> defaultdict[UUID, list[Operation]]:
    """The operations of each run's last turn."""
    turn = {run.id: run.turn for run in runs}
    found: defaultdict[UUID, list[Operation]] = defaultdict(list)
    for operation in Operation.objects.filter(run_id__in=turn).order_by("position"):
        if operation.turn == turn[operation.run_id]:
            found[operation.run_id].append(operation)
    return found


def _granted(calls: dict[UUID, list[Operation]]) -> set[UUID]:
    gated = [one.id for rows in calls.values() for one in rows if one.state == STATE.AWAITING_APPROVAL]
    return {operation_id for operation_id, (yes, _) in approvals.standing(gated).items() if yes}


def _children(calls: dict[UUID, list[Operation]]) -> dict[UUID, Run]:
    """The runs of other agents that carry out these calls, by call."""
    out = [
        one.id for rows in calls.values() for one in rows if one.kind == Kind.AGENT and one.state == STATE.DISPATCHED
    ]
    found = Run.objects.filter(parent_operation_id__in=out) if out else Run.objects.none()
    return {child.parent_operation_id: child for child in found if child.parent_operation_id is not None}


def _has_untold_end(calls: Sequence[Operation], children: Mapping[UUID, Run]) -> bool:
    """Whether a child ended a while ago and its call does not know: an older build tells nobody."""
    ends = [children[one.id].ended_at for one in calls if one.id in children]
    return any(end is not None and now() - end > UNTOLD for end in ends)


def _reason(
    run: Run, calls: Sequence[Operation], granted: set[UUID], children: Mapping[UUID, Run] = MappingProxyType({})
) -> str | None:
    """Why the run waits, as far as our own rows say; empty if it has just moved, None if they do not say."""
    if run.state == Run.State.CANCELLING:
        running = [one.name for one in calls if one.state == STATE.DISPATCHED]
        if running and run.cancel_requested_at is not None and now() - run.cancel_requested_at < STOPPING:
            return _named("stop requested, still running", running)
    else:
        gated = [one.name for one in calls if one.state == STATE.AWAITING_APPROVAL and one.id not in granted]
        if gated:
            return _named("approval", gated)
        unclear = [one.name for one in calls if one.state == STATE.UNCERTAIN]
        if unclear and run.agent_version.definition.get("on_uncertain", "wait") == "wait":
            return _named("uncertain operation", unclear)
        if below := [children[one.id] for one in calls if one.id in children]:
            return _named("child run", [_described(child) for child in below])
        if calls and (until := _back_off_until(calls[0])) is not None and until > now():
            return f"model back-off: {calls[0].error_class} until {wire_time(until)}"
    return "" if now() - _last_move(run, calls) < QUIET else None


def _described(child: Run) -> str:
    return f"{child.id} ({child.waiting_for or child.state})"


def _named(what: str, names: Sequence[str]) -> str:
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{what}: {names[0]}{more}"


def _back_off_until(model_call: Operation) -> datetime | None:
    if model_call.state != STATE.FAILED or not model_call.usage.get("retryable") or model_call.settled_at is None:
        return None
    failed = Thought(kind="failed", retry_after_seconds=model_call.usage.get("retry_after_seconds"))
    delay = agent_loop.backoff_seconds(model_call.usage.get("asked_attempt", 1), failed)
    return model_call.settled_at + timedelta(seconds=delay)


def _last_move(run: Run, calls: Sequence[Operation]) -> datetime:
    moves = [at for one in calls for at in (one.proposed_at, one.dispatched_at, one.settled_at, one.reconciled_at)]
    return max(at for at in [run.created_at, run.cancel_requested_at, *moves] if at is not None)


def _ask_temporal(silent: Sequence[Run]) -> int:
    """Explain runs that our own rows do not explain; returns how many of them wait.

    Are there many, those are asked about that were not for the longest time; the others keep their reason meanwhile.
    """
    count = min(max(LOOKS_MIN, -(-len(silent) // TICKS_MAX)), LOOKS_MAX)
    asked = sorted(silent, key=lambda run: run.looked_at or run.created_at)[:count]
    if len(asked) < len(
        silent
    ):  # written first: one that cannot be asked about must not keep the others from their turn
        Run.objects.filter(id__in=[run.id for run in asked]).update(looked_at=Now())
    try:
        sights = temporal.look_at_all([run.id for run in asked])
    except Unavailable:
        for run in silent:
            _write(run, UNREACHABLE)
        return len(silent)
    for run, seen in zip(asked, sights, strict=True):
        run.waiting_for = _write(run, UNREACHABLE if seen is None else _judged(run, seen))
    return sum(bool(run.waiting_for) for run in silent)


def _judged(run: Run, seen: temporal.Sight) -> str:
    """What was seen of a run. One that cannot be explained must not hide the reasons of all others."""
    try:
        return _seen(run, seen)
    except DatabaseError:
        raise  # the store is away: that is no fault of this run
    except Exception as error:
        logger.exception("run %s cannot be explained", run.id)
        return f"cannot be explained: {type(error).__name__}, see the log"


def _seen(run: Run, seen: temporal.Sight) -> str:
    if seen.standing != "running":
        return _lost(run, seen.standing)
    if seen.task_failures >= TASK_FAILURES_MIN:
        return f"failing workflow task: {seen.failure}"
    if seen.untaken_since is not None and now() - seen.untaken_since > UNTAKEN:
        return f"no worker takes its work since {wire_time(seen.untaken_since)}"
    return ""


def _lost(run: Run, standing: temporal.Standing) -> str:
    """A live run without a workflow. One that somebody ended in Temporal ends the run too, with a name.

    One that Temporal does not know may be our own mistake (another namespace, a server that was reset), so it is shown
    and ends the run only when a person asked it to stop. A start that nobody confirmed is settled elsewhere.
    """
    if run.state == Run.State.STARTING:
        return "start not confirmed by Temporal yet"
    if standing == "absent" and run.state != Run.State.CANCELLING:
        return "Temporal does not know its workflow: is it the right namespace? Cancel the run to end it"
    logger.warning("run %s is live and its workflow is %s", run.id, standing)
    asyncio.run(delegations.give_up(endings.in_flight(run.id, run.resumes), patient=False))
    endings.finish(
        FinishInput(
            run_id=run.id,
            resumption=run.resumes,
            outcome="failed",
            code="workflow_lost",
            message=f"the run's workflow is {standing} in Temporal",
        )
    )
    return ""


def _write(run: Run, reason: str) -> str:
    reason = reason[:REASON_CHARS_MAX]
    if reason != run.waiting_for:
        Run.objects.filter(id=run.id, state__in=Run.LIVE, turn=run.turn).update(waiting_for=reason)
    return reason

"""Let a failed run go on: the same run with the same operations. Whatever succeeded or is unclear is not done again.

A resume is claimed in the row, then handed to Temporal, and only then is the run running again, with its event. A
claim that nobody confirmed is settled by a sweep.
"""

from __future__ import annotations

import logging
from datetime import timedelta
from uuid import UUID

from django.db import transaction
from django.db.models import F
from django.db.models.functions import Now

from kernel_project.primitives.clock import now
from kernel_project.primitives.errors import Conflict, NotFound, Unavailable
from outbox.contracts import Actor
from outbox.models import Event
from runs.contracts import Limits
from runs.loop import starts, temporal
from runs.loop.contracts import LoopState, RunInput
from runs.loop.endings import LIMIT_PREFIX
from runs.loop.turns import confirm_resume, tickets_of
from runs.models import Artifact, Operation, Run

logger = logging.getLogger(__name__)

UNCLEAR_AFTER = timedelta(seconds=10)  # a resume younger than this may still be on its way
SWEEP_BATCH_MAX = 100  # unclear resumes that one sweep settles
STATE = Operation.State


def resume(run_id: UUID, project: str, by: Actor) -> Run:
    """Let a failed run go on, and return it once Temporal has acknowledged that.

    Raises NotFound for an absent or foreign run; Conflict for one that has not failed, is being resumed, or would fail
    again at once; temporal.Down or temporal.Unclear when Temporal did not confirm: the run has failed as before then,
    and may be resumed again.
    """
    run = _claim(run_id, project, by)
    try:
        temporal.start_again(_input(run))
    except temporal.Down:
        _release(run)
        raise
    if not confirm_resume(run.id, run.resumes):
        raise temporal.Unclear("the resume took so long that it was given up; try again")
    run.refresh_from_db()
    return run


def _claim(run_id: UUID, project: str, by: Actor) -> Run:
    """Take the right to resume a run: one of many that ask at once gets it."""
    with transaction.atomic():
        found = Run.objects.select_for_update(no_key=True, of=("self",)).select_related("agent_version__agent")
        run = found.filter(id=run_id, project_id=project).exclude(state=Run.State.STARTING).first()
        if run is None:
            raise NotFound("there is no such run")
        _check(run)
        Run.objects.filter(id=run.id).update(
            resumes=F("resumes") + 1, resuming_since=Now(), resumed_by=by.id, resumed_by_type=by.type
        )
        run.refresh_from_db()
    return run


def _check(run: Run) -> None:
    if run.state != Run.State.FAILED:
        raise Conflict(f"the run is {run.state}: only a failed one can be resumed", code="not_failed", state=run.state)
    if run.resuming_since is not None:
        raise Conflict("the run is being resumed already", code="resuming")
    if run.compensates_id is not None:
        raise Conflict("it was to undo an effect: ask for another compensation of that operation", code="compensation")
    if Artifact.objects.filter(run=run, purged_at__isnull=False).exists():
        raise Conflict("some of what it knew was purged: start a new run", code="purged")
    # reads the journal in the transaction of the claim: a drop of the run's month comes before it or sees it
    if not Event.objects.filter(run_id=run.id).exists():
        raise Conflict("its month of the journal was dropped: start a new run", code="purged")
    limits = Limits.model_validate(run.agent_version.definition["limits"])
    late = limits.wall_seconds_max and now() >= run.created_at + timedelta(seconds=limits.wall_seconds_max)
    if late or run.failure_code.startswith(LIMIT_PREFIX):
        name = "wall_time" if late else run.failure_code.removeprefix(LIMIT_PREFIX)
        raise Conflict(
            f"its limit on {name} is used up, and it would end at once: start a run of a version with more of it",
            code="limit_reached",
            limit=name,
        )
    unclear = Operation.objects.filter(run=run, turn=run.turn, state=STATE.UNCERTAIN)
    if run.agent_version.definition["on_uncertain"] == "fail" and (first := unclear.order_by("position").first()):
        raise Conflict(
            f"operation {first.id} is uncertain, and this agent stops then: reconcile it first",
            code="uncertain_operation",
            operation=str(first.id),
        )


def _input(run: Run) -> RunInput:
    """What the new execution starts with: the counters, and the calls of the last turn as they stand.

    A turn whose calls were written down goes on with them: closed ones are told to the model, unclear ones are waited
    for. Any other last turn gave nothing, and the next one asks again.
    """
    calls = Operation.objects.filter(run=run, position__gte=1)
    last = list(calls.filter(turn=run.turn).select_related("tool").order_by("position"))
    state = LoopState(turn=run.turn, tool_calls=calls.exclude(state=STATE.BLOCKED).count())
    given = starts.run_input(run)
    return given.model_copy(update={"state": state, "tickets": tickets_of(last), "resumption": run.resumes})


def _release(run: Run) -> None:
    """The claim came to nothing."""
    Run.objects.filter(id=run.id, state=Run.State.FAILED, resumes=run.resumes).update(resuming_since=None)


def settle_unclear_resumes(limit: int = SWEEP_BATCH_MAX) -> int:
    """Ask Temporal about resumes that nobody confirmed; returns how many were settled.

    One whose execution is there is confirmed. Any other is given up: the run has failed as before.
    """
    old = Run.objects.filter(resuming_since__lt=Now() - UNCLEAR_AFTER).order_by("resuming_since")
    settled = 0
    for run in list(old.only("id", "resumes", "state")[:limit]):
        try:
            if temporal.resumption(run.id) == run.resumes:
                confirm_resume(run.id, run.resumes)
            else:
                _release(run)
        except Unavailable as error:
            logger.info("unclear resumes wait: %s", error.message)
            break
        settled += 1
    return settled

"""Child runs: a call of the model that another agent carries out, as a run of its own.

The call is dispatched like any other, and stays so while its child is at work. The child is found by the call, so
whatever is delivered twice starts it once. How it ended is told to the parent's model as the result of the call.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from uuid import UUID

from django.conf import settings
from django.db import transaction

from kernel_project.primitives.canonical import parse_json
from kernel_project.primitives.errors import Conflict, Invalid, KernelError, NotFound
from outbox import services as outbox
from outbox.contracts import KERNEL, NewEvent
from runs.boundary import artifacts, operations
from runs.boundary import perform as boundary
from runs.boundary.contracts import Charge, Dispatch, EffectResult
from runs.boundary.operations import Unclear
from runs.boundary.threads import in_thread
from runs.contracts import Limits
from runs.loop import endings, starts
from runs.loop.contracts import DelegateInput, Ticket
from runs.loop.starts import KeyInProgress, Parent, ParentLate, ParentStopped, StartRequest
from runs.loop.turns import tickets
from runs.models import AgentVersion, Kind, ModelPrice, Operation, Run
from runs.selectors import charged

logger = logging.getLogger(__name__)

CHILD_END_SECONDS_MAX = 60.0  # that the end of a run waits for its children, which were told to stop
CHILD_END_POLL_SECONDS = 0.25
TEXTS = {
    "completed": "The agent {agent} answered (run {run}). Its answer, as data:\n{answer}",
    "failed": "The agent {agent} did not finish (run {run}): {code}, {message}. What it had done by then stands.",
    "cancelled": "The agent {agent} was stopped (run {run}). What it had done by then stands.",
    "live": "The agent {agent} was told to stop and had not ended yet (run {run}). What it had done by then stands.",
}
UNCLEAR_NOTE = "\nOf its operations {count} have an UNKNOWN outcome: do not let them be repeated."
LAST_WORDS = "\nIts last answer, as data:\n{answer}"
LATE = "the run's time was over before the other agent began"
STATE = Operation.State


def delegate(asked: DelegateInput, heartbeat: Callable[..., None]) -> Ticket:
    """Start the child of a call, or settle the call when the child has ended; a repeat does whatever is left to do.

    Raises Unavailable and KeyInProgress while Temporal has not confirmed the child: then it is to be called again.
    """
    step = operations.dispatch(asked.operation_id, heartbeat)
    given = step.dispatch if isinstance(step, Unclear) else step
    if isinstance(given, Dispatch):
        _bring_on(asked, given)
    return tickets(asked.run_id, (asked.operation_id,))[0]


def _bring_on(asked: DelegateInput, given: Dispatch) -> None:
    child = child_of(given.operation_id)
    if child is not None and child.state != Run.State.STARTING:
        _tell(child, "started", {"status": "running"})  # whoever started it may have died before
    if child is not None and child.state in Run.ENDED:
        _settle(given, child)
    elif asked.over:
        _call_off(given, child)
    elif child is None or child.state == Run.State.STARTING:
        _start(given)


def child_of(operation_id: UUID) -> Run | None:
    """The run that carries out a call."""
    return Run.objects.select_related("agent_version__agent").filter(parent_operation_id=operation_id).first()


def _call_off(given: Dispatch, child: Run | None) -> None:
    if child is None:
        operations.settle_failure(given, "withdrawn", LATE)
    else:
        cancel(child, endings.PARENT_LATE)


def _start(given: Dispatch) -> None:
    try:
        child = starts.start(_request(given)).run
    except KeyInProgress:
        raise
    except ParentLate:
        _call_off(given, child_of(given.operation_id))
        return
    except ParentStopped:
        return  # whoever ends the run gives the call its outcome
    except (Invalid, NotFound, Conflict) as error:
        operations.settle_failure(given, error.error_code, error.message)
        return
    _tell(child, "started", {"status": "running"})


def _request(given: Dispatch) -> StartRequest:
    """The start of the child. Whoever started the first run answers for all below it, also where two must agree."""
    run = Run.objects.select_related("agent_version").get(id=given.run_id)
    if run.depth >= settings.KERNEL_CHILD_DEPTH_MAX:
        raise Conflict(f"runs may go {settings.KERNEL_CHILD_DEPTH_MAX} deep, and this one is", code="too_deep")
    _check_price(run, given.configuration["remote_name"])
    limits = Limits.model_validate(run.agent_version.definition["limits"])
    own = settings.KERNEL_CHILDREN_MAX if limits.children_max is None else limits.children_max
    return StartRequest(
        project=run.project_id,
        agent=given.configuration["remote_name"],
        input=given.arguments["task"],
        owner=run.started_by,
        key=str(given.operation_id),
        parent=Parent(run.id, given.operation_id, run.depth + 1, min(own, settings.KERNEL_CHILDREN_MAX)),
    )


def _check_price(run: Run, agent: str) -> None:
    """What a child costs counts against the limits of all runs above it; unknown is not nothing."""
    versions = AgentVersion.objects.filter(agent__project_id=run.project_id, agent__name=agent)
    version = versions.order_by("version").last()
    model = version.definition["model"] if version else ""
    if not model or ModelPrice.objects.filter(project_id=run.project_id, model=model).exists():
        return
    above = run
    for _ in range(run.depth + 1):
        if above.agent_version.definition["limits"].get("cost_max") is not None:
            raise Conflict(f"this run may cost only so much, and {model} has no price", code="price_unknown")
        if above.parent_id is None:
            return
        above = Run.objects.select_related("agent_version").get(id=above.parent_id)


def _settle(given: Dispatch, child: Run) -> None:
    """Tell how the child ended, and give its words to the parent's model: data, and cut like any other result.

    Both in one transaction, once: a child that is still stopping has another state when somebody tries again.
    """
    completed = child.state == Run.State.COMPLETED
    status = {"status": child.state, "reason": child.failure_code}
    result = EffectResult(text=_told(child), is_error=not completed)
    with transaction.atomic():
        Run.objects.select_for_update(no_key=True).filter(id=given.run_id).first()  # before the call, as everywhere
        if not Operation.objects.filter(id=given.operation_id, state=STATE.DISPATCHED).exists():
            return
        _tell(child, "completed" if completed else "failed", status, attempt=child.resumes + 1)
        operations.settle_answer(given, result, spent=Charge(*charged(child.id)))


def _told(child: Run) -> str:
    state = child.state if child.state in Run.ENDED else "live"
    answer = _last_words(child)
    values = {
        "agent": child.agent_version.agent.name, "run": child.id, "answer": answer,
        "code": child.failure_code, "message": child.failure_message,
    }  # fmt: skip
    text = TEXTS[state].format(**values)
    if unclear := Operation.objects.filter(run=child, state=STATE.UNCERTAIN).count():
        text += UNCLEAR_NOTE.format(count=unclear)
    return text + (LAST_WORDS.format(answer=answer) if state == Run.State.FAILED and answer else "")


def _last_words(child: Run) -> str:
    if not child.result_digest:
        return ""
    try:
        answer = parse_json(artifacts.read(child.id, child.result_digest))
        return str(answer["text"])
    except (KernelError, artifacts.Corrupt):
        return "(it cannot be read any more)"


def _tell(child: Run, what: str, data: dict[str, str], attempt: int = 1) -> None:
    """An event of the parent; told again, it is the same one."""
    assert child.parent_id is not None
    known = {"child_run_id": str(child.id), "agent": child.agent_version.agent.name, "depth": child.depth}
    told = NewEvent(
        run_id=child.parent_id,
        project=child.project_id,
        type=f"delegation.{what}",
        subject=f"{child.parent_operation_id}",
        attempt=attempt,
        operation_id=child.parent_operation_id,
        frame_id=str(child.parent_id),
        data={**known, **data},
    )
    with transaction.atomic():
        if Run.objects.select_for_update(no_key=True).filter(id=child.parent_id, state__in=Run.LIVE).exists():
            outbox.append([told])


def cancel(child: Run, reason: str) -> None:
    """Ask a child to stop, unless it has ended meanwhile."""
    try:
        endings.request_cancel(child.id, child.project_id, KERNEL, reason)
    except (Conflict, NotFound) as error:
        logger.info("child %s is not to be stopped: %s", child.id, error.message)


async def give_up(operation_ids: Sequence[UUID], *, patient: bool = True) -> None:
    """Give an outcome to calls that are still out while their run ends: by themselves, or by how their children end.

    Children are told to stop; a `patient` caller waits for that, a little while for all of them.
    """
    delegated = await in_thread(_delegated, operation_ids)
    for operation_id in operation_ids:
        if operation_id not in delegated:
            await boundary.give_up(operation_id)
    await in_thread(_stop_all, delegated)
    for _ in range(int(CHILD_END_SECONDS_MAX / CHILD_END_POLL_SECONDS) if patient and delegated else 0):
        if not await in_thread(_still_live, delegated):
            break
        await asyncio.sleep(CHILD_END_POLL_SECONDS)
    for operation_id in delegated:
        await in_thread(_give_up, operation_id)


def _delegated(operation_ids: Sequence[UUID]) -> list[UUID]:
    return list(Operation.objects.filter(id__in=operation_ids, kind=Kind.AGENT).values_list("id", flat=True))


def _live_children(operation_ids: Sequence[UUID]) -> list[Run]:
    return list(Run.objects.filter(parent_operation_id__in=operation_ids, state__in=Run.LIVE))


def _still_live(operation_ids: Sequence[UUID]) -> bool:
    return bool(_live_children(operation_ids))


def _stop_all(operation_ids: Sequence[UUID]) -> None:
    for child in _live_children(operation_ids):
        cancel(child, endings.PARENT_ENDED)


def _give_up(operation_id: UUID) -> None:
    step = operations.interrupted(operation_id)
    if step is None:
        return
    child = child_of(operation_id)
    if child is None:
        operations.settle_failure(step.dispatch, "cancelled", "the run ended before the other agent began")
    else:
        _settle(step.dispatch, child)

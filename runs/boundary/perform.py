"""Carry one operation from its intent to its outcome, whatever was interrupted before. Decides by the row alone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from kernel_project.primitives.clock import now
from runs.boundary import faults, operations
from runs.boundary.contracts import Dispatch, EffectResult, NotSent, ProbeAnswer, ProbeVerdict, Refused
from runs.boundary.effects import adapter
from runs.boundary.mcp_sessions import close_sessions
from runs.boundary.operations import ATTEMPTS_MAX, Settled, Superseded, Unclear
from runs.boundary.threads import in_thread, to_the_end
from runs.models import Operation

logger = logging.getLogger(__name__)

ROUNDS_MAX = 2 * ATTEMPTS_MAX + 2  # steps of one delivery; each round dispatches, probes or ends
TIMEOUT_GRACE_SECONDS = 2.0  # an adapter's own time-out is better informed than ours, so it goes first
PROBE_TIMEOUT_SECONDS = 30.0
ABSENT_AFTER_SECONDS = 60.0  # after its deadline, a call that a probe does not find will not happen any more

Step = Dispatch | Settled | Unclear
Performer = Callable[[Dispatch], Any]


async def perform(
    operation_id: UUID, heartbeat: Callable[..., None], leaves_it: Callable[[], bool] = lambda: False
) -> Settled:
    """Perform a tool call, at most once for all that can be known; may be called again and again for one operation.

    Raises what the database raises while nothing has left. After the effect its outcome is written even if the caller
    is cancelled. A call that is cancelled under way gets its outcome at once, unless `leaves_it` says that it was this
    process that must stop, not the call: then the row stays dispatched, and the next delivery applies the table.
    """
    step: Step = await in_thread(operations.dispatch, operation_id, heartbeat)
    for _ in range(ROUNDS_MAX):
        match step:
            case Settled():
                return step
            case Dispatch():
                step = await carry_out(step, leaves_it)
            case Unclear():
                step = await resolve(step, heartbeat)
    raise AssertionError(f"operation {operation_id} did not end in {ROUNDS_MAX} rounds")


async def carry_out(given: Dispatch, leaves_it: Callable[[], bool] = lambda: False) -> Settled | Unclear:
    """One effect and its outcome. An unclear outcome is returned, not written: the table may still clear it up."""
    faults.reach("after_intent", given.tool)
    try:
        limit = given.timeout_seconds + TIMEOUT_GRACE_SECONDS
        result: EffectResult = await asyncio.wait_for(adapter(given.kind).perform(given), limit)
    except (NotSent, Refused) as error:
        return await to_the_end(operations.settle_failure, given, _name(error), str(error))
    except Superseded:
        return await in_thread(_as_it_is, given.operation_id)
    except asyncio.CancelledError:
        if not leaves_it():
            unclear = Unclear(given, "cancelled", "the call was cancelled while it was under way")
            await to_the_end(_settle_cancelled, unclear)
        raise
    except Exception as error:
        logger.info("operation %s attempt %s is unclear: %s", given.operation_id, given.attempt, _name(error))
        return Unclear(given, _name(error), str(error))
    faults.reach("after_effect", given.tool)
    settled = await to_the_end(operations.settle_answer, given, result)
    faults.reach("after_settle", given.tool)
    return settled


async def give_up(operation_id: UUID) -> None:
    """Give an outcome to an operation that is still dispatched while its run ends, without another attempt."""
    step = await in_thread(operations.interrupted, operation_id)
    if step is None:
        return
    operation = await in_thread(_row, operation_id)
    if operation.probes and (answer := await probe(step.dispatch)).verdict == ProbeVerdict.ONE:
        found = answer.result or EffectResult(text=answer.detail or "found by the probe")
        await to_the_end(operations.settle_answer, step.dispatch, found, found_by="probe")
    else:
        await to_the_end(_settle_cancelled, step)


async def resolve(unclear: Unclear, heartbeat: Callable[..., None]) -> Step:
    """The redelivery table: what follows an attempt whose outcome is unclear."""
    operation = await in_thread(_row, unclear.dispatch.operation_id)
    if _repeatable(operation):
        if operation.attempt < ATTEMPTS_MAX:
            return await in_thread(operations.again, unclear, heartbeat)
        if operation.effect == "read":
            return await in_thread(operations.settle_failure, unclear.dispatch, unclear.error_class, unclear.message)
    elif operation.probes:
        answer = await probe(unclear.dispatch)
        if answer.verdict == ProbeVerdict.ONE:
            found = answer.result or EffectResult(text=answer.detail or "found by the probe")
            return await to_the_end(operations.settle_answer, unclear.dispatch, found, found_by="probe")
        if answer.verdict == ProbeVerdict.ABSENT and absent_counts(operation) and operation.attempt < ATTEMPTS_MAX:
            return await in_thread(operations.again, unclear, heartbeat)
    return await to_the_end(operations.settle_uncertain, unclear)


def _repeatable(operation: Operation) -> bool:
    """Reads; writes that the other side recognises; and writes that provably never left."""
    if operation.effect == "read":
        return True
    if operation.idempotent_for_seconds:
        assert operation.first_dispatched_at is not None
        alive_until = operation.first_dispatched_at + timedelta(seconds=operation.idempotent_for_seconds)
        return now() < alive_until
    return operations.marks_sending(operation) and operation.sending_at is None


async def probe(given: Dispatch) -> ProbeAnswer:
    """Ask the other side; a probe that fails could not tell."""
    try:
        answer: ProbeAnswer = await asyncio.wait_for(adapter(given.kind).probe(given), PROBE_TIMEOUT_SECONDS)
    except Exception as error:
        return ProbeAnswer(verdict=ProbeVerdict.CANNOT_TELL, detail=_name(error))
    return answer


async def probe_alone(given: Dispatch) -> ProbeAnswer:
    """A probe in an event loop of its own, which leaves no session behind."""
    try:
        return await probe(given)
    finally:
        await close_sessions()


def absent_counts(operation: Operation, at: datetime | None = None) -> bool:
    """Whether "not found" may be believed: the attempt's deadline and the time that the other side may lag are over."""
    assert operation.deadline_at is not None
    lag = ABSENT_AFTER_SECONDS
    if operation.tool is not None:
        lag = float(operation.tool.configuration.get("absent_after_seconds", lag))
    return (at or now()) >= operation.deadline_at + timedelta(seconds=lag)


def _settle_cancelled(unclear: Unclear) -> Settled:
    """A cancelled read had no effect; of a cancelled write nobody knows, unless it provably never left."""
    operation = _row(unclear.dispatch.operation_id)
    unsent = operations.marks_sending(operation) and operation.sending_at is None
    if operation.effect == "read" or unsent:
        return operations.settle_failure(unclear.dispatch, unclear.error_class, unclear.message)
    return operations.settle_uncertain(unclear)


def _row(operation_id: UUID) -> Operation:
    return Operation.objects.select_related("tool").get(id=operation_id)


def _as_it_is(operation_id: UUID) -> Settled:
    return Settled(operation_id, _row(operation_id).state)


def _name(error: BaseException) -> str:
    """An error's class as people write it: TimeoutError, NotSent, …"""
    return type(error).__name__[:60]

"""Carry one operation from its intent to its outcome, whatever was interrupted before. Decides by the row alone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from django.db.models import DateTimeField, Func

from kernel_project.primitives.keyring import KeyUnavailable
from runs.boundary import declared, faults, operations, outcomes, secret_arguments
from runs.boundary.contracts import Dispatch, EffectResult, NotSent, ProbeAnswer, ProbeVerdict, Refused
from runs.boundary.effects import adapter
from runs.boundary.gate import ATTEMPTS_MAX
from runs.boundary.mcp_pool import close_sessions
from runs.boundary.operations import STATE, Effect, Held, Settled, Step, Superseded, Unclear
from runs.boundary.outcomes import Outcome
from runs.boundary.secret_arguments import Opened
from runs.boundary.threads import in_thread, to_the_end, uninterrupted
from runs.models import Operation

logger = logging.getLogger(__name__)

ROUNDS_MAX = 2 * ATTEMPTS_MAX + 2  # steps of one delivery; each round dispatches, probes or ends
TIMEOUT_GRACE_SECONDS = 2.0  # an adapter's own time-out is better informed than ours, so it goes first
STOP_SECONDS_MAX = 5.0  # that an adapter has for ending after it was told to; then it is left running, and watched
LATE_WATCHED_MAX = 1_000  # calls left running whose late finish is taken up as evidence
PROBE_TIMEOUT_SECONDS = 30.0
AGAIN_PAUSES_SECONDS = (0.1, 0.5, 2.0)  # before the second, third and fourth attempt of a call that failed under way
HELD_SECONDS_MAX = 20.0  # how long a call waits for a twin that is under way; then it is refused
HELD_POLL_SECONDS = 0.25

_late: set[asyncio.Task[None]] = set()


class AdapterCancelled(Exception):
    """The adapter's own doing ended the call as if it had been cancelled; nobody had cancelled it."""


async def perform(
    operation_id: UUID, heartbeat: Callable[..., None], leaves_it: Callable[[], bool] = lambda: False
) -> Settled:
    """Perform a tool call, at most once for all that can be known; may be called again and again for one operation.

    Raises what the database raises while nothing has left. After the effect its outcome is written even if the caller
    is cancelled. A call that is cancelled under way gets its outcome at once, unless `leaves_it` says that it was this
    process that must stop, not the call: then the row stays dispatched, and the next delivery applies the table.
    """
    step = await _dispatched(operation_id, heartbeat)
    for _ in range(ROUNDS_MAX):
        match step:
            case Settled():
                return step
            case Dispatch():
                step = await carry_out(step, leaves_it)
            case Unclear():
                step = await resolve(step, heartbeat)
            case Held():
                return await in_thread(_as_it_is, operation_id)
    raise AssertionError(f"operation {operation_id} did not end in {ROUNDS_MAX} rounds")


async def _dispatched(operation_id: UUID, heartbeat: Callable[..., None]) -> Step:
    """Dispatch, after a twin that is under way has ended; when that takes too long, the call is refused."""
    for _ in range(int(HELD_SECONDS_MAX / HELD_POLL_SECONDS)):
        step = await in_thread(operations.dispatch, operation_id, heartbeat, patient=True)
        if not isinstance(step, Held):
            return step
        heartbeat()
        await asyncio.sleep(HELD_POLL_SECONDS)
    return await in_thread(operations.dispatch, operation_id, heartbeat)


async def carry_out(given: Dispatch, leaves_it: Callable[[], bool] = lambda: False) -> Settled | Unclear:
    """One effect and its outcome. An unclear outcome is returned, not written: the table may still clear it up."""
    faults.reach("after_intent", given.tool)
    opened = Opened(given)
    try:
        opened = secret_arguments.opened(given)
        result = await _answer(opened)
    except (NotSent, Refused) as error:
        return await outcomes.settle(given, Outcome(error_class=_name(error), message=opened.hidden(str(error))))
    except Superseded:
        return await in_thread(_as_it_is, given.operation_id)
    except asyncio.CancelledError:
        if not leaves_it():
            unclear = Unclear(given, "cancelled", "the call was cancelled while it was under way")
            await to_the_end(_settle_cancelled, unclear)
        raise
    except Exception as error:
        logger.info("operation %s attempt %s is unclear: %s", given.operation_id, given.attempt, _name(error))
        return Unclear(given, _name(error), opened.hidden(str(error)))
    faults.reach("after_effect", given.tool)
    if result.is_error and operations.error_effect(given, result) == "uncertain":
        return Unclear(given, "tool_error", result.text)
    settled = await outcomes.settle(given, Outcome(result=result))
    faults.reach("after_settle", given.tool)
    return settled


async def _answer(opened: Opened) -> EffectResult:
    """The adapter's answer, within the time limit and a grace.

    Raises CancelledError only when our caller was cancelled and the call has ended without an answer or goes on without
    us; one that answered all the same is settled before. A call that goes on is watched for its late finish.
    """
    given = opened.dispatch
    task: asyncio.Task[EffectResult] = asyncio.create_task(_performed(opened))
    try:
        await asyncio.wait({task}, timeout=given.timeout_seconds + TIMEOUT_GRACE_SECONDS)
    except asyncio.CancelledError:
        await uninterrupted(asyncio.ensure_future(_stop(task, opened)))
        if _has_answer(task):
            await outcomes.settle(given, Outcome(result=task.result()))
        raise
    if not task.done():
        await _stop(task, opened)
        if not _has_answer(task):
            raise TimeoutError(f"no answer within {given.timeout_seconds:g} s")
    if task.cancelled():
        raise AdapterCancelled("the connection to the tool broke down")
    return task.result()


async def _performed(opened: Opened) -> EffectResult:
    return opened.result(await adapter(opened.dispatch.kind).perform(opened.dispatch))


def _has_answer(task: asyncio.Task[EffectResult]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


async def _stop(task: asyncio.Task[EffectResult], opened: Opened) -> None:
    """Tell the call to end, and wait for that a little while."""
    task.cancel()
    await asyncio.wait({task}, timeout=STOP_SECONDS_MAX)
    if not task.done() and len(_late) < LATE_WATCHED_MAX:
        watcher = asyncio.create_task(_take_up(task, opened))
        _late.add(watcher)
        watcher.add_done_callback(_late.discard)


async def _take_up(task: asyncio.Task[EffectResult], opened: Opened) -> None:
    """Keep the finish of a call that nobody waits for any more: it is evidence for an unclear operation (C59)."""
    given = opened.dispatch
    await asyncio.wait({task})
    try:
        outcome = Outcome(result=task.result())
    except (NotSent, Refused) as error:
        outcome = Outcome(error_class=_name(error), message=opened.hidden(str(error)))
    except (Exception, asyncio.CancelledError) as error:
        logger.info("operation %s attempt %s ended late: %s", given.operation_id, given.attempt, _name(error))
        return
    await outcomes.settle(given, outcome)


async def give_up(operation_id: UUID) -> None:
    """Give an outcome to an operation that is still dispatched while its run ends, without another attempt."""
    step = await in_thread(operations.interrupted, operation_id)
    if step is None:
        return
    try:
        if await _settled_from_kept(step):
            return
    except KeyUnavailable as error:
        _log_unreadable(step, error)
    facts = await in_thread(_facts, operation_id)
    if facts.operation.probes and (answer := await probe(step.dispatch)).verdict == ProbeVerdict.ONE:
        await outcomes.settle(step.dispatch, Outcome(result=found(answer), found_by="probe"))
    else:
        await to_the_end(_settle_cancelled, step)


async def resolve(unclear: Unclear, heartbeat: Callable[..., None]) -> Step:
    """The redelivery table: what follows an attempt whose outcome is unclear."""
    given = unclear.dispatch
    try:
        if unclear.error_class == "interrupted" and (settled := await _settled_from_kept(unclear)):
            return settled
    except KeyUnavailable as error:
        _log_unreadable(unclear, error)
        if given.record is None or given.record.effect != "read":
            return await to_the_end(operations.settle_uncertain, unclear)
    facts = await in_thread(_facts, given.operation_id)
    operation, attempts_left = facts.operation, facts.operation.attempt < ATTEMPTS_MAX
    if (operation.state, operation.attempt) != (STATE.DISPATCHED, given.attempt):
        return Settled(operation.id, operation.state)
    if facts.unsent:
        if attempts_left:
            return await _again(unclear, heartbeat, "none", unsent=True)
        return await in_thread(operations.settle_unsent, unclear)
    if operation.effect == "read":
        if attempts_left:
            return await _again(unclear, heartbeat, "none")
        return await in_thread(operations.settle_failure, given, unclear.error_class, unclear.message)
    if (facts.key_is_alive or facts.is_replay_safe) and attempts_left:
        return await _again(unclear, heartbeat, "uncertain")
    if operation.probes and not facts.key_is_alive:
        answer = await probe(given)
        if answer.verdict == ProbeVerdict.ONE:
            return await outcomes.settle(given, Outcome(result=found(answer), found_by="probe"))
        if answer.verdict == ProbeVerdict.ABSENT and facts.absent_counts and attempts_left:
            return await _again(unclear, heartbeat, "none")
    return await to_the_end(operations.settle_uncertain, unclear)


async def _settled_from_kept(unclear: Unclear) -> Settled | None:
    """An earlier delivery learnt the outcome while the database was away: it is no longer unclear."""
    outcome = await asyncio.to_thread(outcomes.kept, unclear.dispatch)
    if outcome is None:
        return None
    settled = await outcomes.settle(unclear.dispatch, outcome)
    await asyncio.to_thread(outcomes.drop, unclear.dispatch)
    return settled


def _log_unreadable(unclear: Unclear, error: KeyUnavailable) -> None:
    """What was learnt stays where it is: somebody may look at it once its key is back, and nothing is repeated."""
    logger.error("the outcome of operation %s was kept and cannot be read: %s", unclear.dispatch.operation_id, error)


async def _again(unclear: Unclear, heartbeat: Callable[..., None], effect: Effect, *, unsent: bool = False) -> Step:
    if unclear.error_class != "interrupted":
        await asyncio.sleep(AGAIN_PAUSES_SECONDS[min(unclear.dispatch.attempt, len(AGAIN_PAUSES_SECONDS)) - 1])
    return await in_thread(operations.again, unclear, heartbeat, effect, unsent=unsent)


@dataclass(frozen=True)
class Facts:
    """What the row says of an unclear attempt, judged by the database's clock."""

    operation: Operation
    at: datetime

    @property
    def unsent(self) -> bool:
        """Whether it provably never left: its adapter had to say so first, and did not."""
        return operations.marks_sending(self.operation) and self.operation.sending_at is None

    @property
    def key_is_alive(self) -> bool:
        """Whether the other side would still recognise a repeat, until that has ended."""
        kept_for = self.operation.idempotent_for_seconds
        if not kept_for:
            return False
        assert self.operation.first_dispatched_at is not None
        timeout = self.operation.tool.timeout_seconds if self.operation.tool else 0
        return self.at < self.operation.first_dispatched_at + timedelta(seconds=kept_for - timeout)

    @property
    def is_replay_safe(self) -> bool:
        return declared.replay_safe(self.operation)

    @property
    def absent_counts(self) -> bool:
        """Whether "not found" may be believed: the attempt's deadline and the other side's lag are over."""
        assert self.operation.deadline_at is not None
        over = (self.at - self.operation.deadline_at).total_seconds()
        return over >= declared.absent_after_seconds(self.operation)


def _facts(operation_id: UUID) -> Facts:
    clock = Func(function="clock_timestamp", output_field=DateTimeField())
    row = Operation.objects.select_related("tool").annotate(clock=clock).get(id=operation_id)
    return Facts(row, row.clock)


async def probe(given: Dispatch) -> ProbeAnswer:
    """Ask the other side; a probe that fails could not tell."""
    try:
        opened = secret_arguments.opened(given)
    except NotSent:
        return ProbeAnswer(verdict=ProbeVerdict.CANNOT_TELL, detail="a secret argument cannot be had")
    try:
        task: asyncio.Task[ProbeAnswer] = asyncio.create_task(adapter(given.kind).probe(opened.dispatch))
        answer = await asyncio.wait_for(asyncio.shield(task), PROBE_TIMEOUT_SECONDS)
        return answer.model_copy(
            update={
                "result": opened.result(answer.result) if answer.result else None,
                "detail": opened.hidden(answer.detail),
            }
        )
    except asyncio.CancelledError:
        if not task.cancelled():
            task.cancel()
            raise
        return ProbeAnswer(verdict=ProbeVerdict.CANNOT_TELL, detail="the connection broke down")
    except Exception as error:
        task.cancel()
        return ProbeAnswer(verdict=ProbeVerdict.CANNOT_TELL, detail=_name(error))


def found(answer: ProbeAnswer) -> EffectResult:
    """What an effect that a probe found is taken to have answered."""
    return answer.result or EffectResult(text=answer.detail or "found by the probe")


async def probe_alone(operation_ids: Sequence[UUID]) -> list[tuple[ProbeAnswer, bool]]:
    """Probes in an event loop of their own, which leave no session behind; and whether the ABSENT of each counts."""
    try:
        return await asyncio.gather(*(_probe_one(operation_id) for operation_id in operation_ids))
    finally:
        await close_sessions()


async def _probe_one(operation_id: UUID) -> tuple[ProbeAnswer, bool]:
    try:
        answer = await probe(await in_thread(operations.permission_to_probe, operation_id))
        return answer, (await in_thread(_facts, operation_id)).absent_counts
    except Exception as error:
        logger.exception("operation %s cannot be looked for", operation_id)
        return ProbeAnswer(verdict=ProbeVerdict.CANNOT_TELL, detail=_name(error)), False


def _settle_cancelled(unclear: Unclear) -> Settled:
    """A cancelled read had no effect; of a cancelled write nobody knows, unless it provably never left."""
    facts = _facts(unclear.dispatch.operation_id)
    if facts.operation.effect == "read":
        return operations.settle_failure(unclear.dispatch, unclear.error_class, unclear.message)
    if facts.unsent and isinstance(settled := operations.settle_unsent(unclear), Settled):
        return settled
    return operations.settle_uncertain(unclear)


def _as_it_is(operation_id: UUID) -> Settled:
    return Settled(operation_id, Operation.objects.values_list("state", flat=True).get(id=operation_id))


def _name(error: BaseException) -> str:
    """An error's class as people write it: TimeoutError, NotSent, …"""
    return type(error).__name__[:60]

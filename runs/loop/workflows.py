"""The workflow of a run: carries out the steps that `agent_loop` decides. Its history holds references only."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, NoReturn, TypeVar
from uuid import UUID

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from runs.loop import agent_loop
    from runs.loop.contracts import (
        UNHEARD,
        WORKFLOW,
        DelegateInput,
        FinishInput,
        LookInput,
        LoopState,
        PerformInput,
        Plan,
        RunInput,
        Seen,
        ThinkInput,
        Thought,
        Ticket,
    )

T = TypeVar("T")

HEARTBEAT_TIMEOUT = timedelta(seconds=10)  # how long a dead worker goes unnoticed
STORE_RETRY = RetryPolicy(  # the database is away: go on trying, nothing has left meanwhile
    initial_interval=timedelta(milliseconds=500), backoff_coefficient=2, maximum_interval=timedelta(seconds=5)
)
LOCAL_TIMEOUT = timedelta(seconds=30)  # one database-only step
LOCAL_SLACK = timedelta(seconds=30)  # over a local tool's own time-out: its two commits
PERFORM_SLACK = timedelta(minutes=15)  # over a tool's own time-out: store retries, probes and bounded repeats
DEADLINE_WAIT_MIN = timedelta(milliseconds=500)  # the store's clock judges, and it may lag behind ours
AGAIN_FIRST_SECONDS = 1.0  # before a call that came back open and ready is tried once more; doubled each time
AGAIN_MAX_SECONDS = 60.0
ANSWERED = "answered"  # a patch: an execution from before it fails at its limit where a message comes late
BROKEN = "internal_error"  # the failure code of a fault of ours
HISTORY_EVENTS_MAX = 8_000  # then a new execution; the server's own suggestion usually comes first
HISTORY_BYTES_MAX = 8 * 1024 * 1024


@workflow.defn(name=WORKFLOW)
class AgentRun:
    """One run. `wake` carries no data: the database is the truth, and the workflow looks."""

    def __init__(self) -> None:
        self._wakes = 0
        self._heard = 0  # the wakes that the last look answers
        self._resumption = 0
        self._state = LoopState()  # at the end of the loop

    @workflow.signal
    def wake(self) -> None:
        self._wakes += 1

    @workflow.run
    async def run(self, given: RunInput) -> str:
        self._resumption = given.resumption
        while True:
            try:
                ended = await self._loop(given)
            except ActivityError as error:
                ended = agent_loop.Finish("cancelled") if is_cancelled_exception(error) else _broken(error)
            except asyncio.CancelledError:
                ended = agent_loop.Finish("cancelled")
            written = await _to_the_end(self._finish(given.plan, ended))
            if written != UNHEARD:
                return written
            if workflow.patched(ANSWERED):
                self._state = self._state.model_copy(update={"answered": True})
            if _history_is_long():
                self._continue(given.plan, self._state)
            given = given.model_copy(update={"state": self._state, "tickets": ()})

    def _continue(self, plan: Plan, state: LoopState, tickets: tuple[Ticket, ...] = ()) -> NoReturn:
        given = RunInput(plan=plan, state=state, tickets=tickets, resumption=self._resumption)
        workflow.continue_as_new(given)

    async def _loop(self, given: RunInput) -> agent_loop.Finish:
        plan, state, step = self._first_step(given)
        while True:
            match step:
                case agent_loop.Finish():
                    self._state = state
                    return step
                case agent_loop.Think():
                    if not await _paused(plan, step.delay_seconds):
                        state, step = agent_loop.out_of_time(plan, state)
                        continue
                    thought = await self._think(plan, state, step)
                    state, step = agent_loop.after_thought(plan, state, thought, late=_is_late(plan))
                case agent_loop.Act():
                    tickets = await self._act(plan, state, step.tickets)
                    if tickets is None:
                        return agent_loop.Finish("cancelled")
                    state, step = agent_loop.after_acts(plan, state, tickets, late=_is_late(plan))
                    if isinstance(step, agent_loop.Think) and _history_is_long():
                        self._continue(plan, agent_loop.rewind(state))

    def _first_step(self, given: RunInput) -> tuple[Plan, LoopState, agent_loop.Step]:
        if not given.tickets:
            return given.plan, *agent_loop.begin(given.plan, given.state, late=_is_late(given.plan))
        self._heard = -1  # news may have come between two executions: look first
        return given.plan, given.state, agent_loop.Act(given.tickets)

    async def _think(self, plan: Plan, state: LoopState, step: agent_loop.Think) -> Thought:
        woken, self._heard = self._wakes != self._heard, self._wakes
        thought: Thought = await workflow.execute_activity(
            "think",
            ThinkInput(
                run_id=plan.run_id,
                turn=state.turn,
                attempt=state.model_attempt,
                tools=step.tools,
                calls_allowed=step.calls_allowed,
                limit=state.limit,
                woken=woken,
                resumption=self._resumption,
            ),
            result_type=Thought,
            task_queue=plan.model_queue or None,
            start_to_close_timeout=timedelta(seconds=plan.model_timeout_seconds) + PERFORM_SLACK,
            heartbeat_timeout=HEARTBEAT_TIMEOUT,
            retry_policy=STORE_RETRY,
            cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        )
        return thought

    async def _act(self, plan: Plan, state: LoopState, tickets: Sequence[Ticket]) -> list[Ticket] | None:
        """Bring every call to its end, in parallel; None when the run is to be cancelled.

        Whatever ends it early, no call is left running behind it.
        """
        performing: dict[UUID, asyncio.Task[Ticket]] = {}
        try:
            ended = await self._bring_to_ends(plan, state, tickets, performing)
        except (asyncio.CancelledError, ActivityError):
            await _to_the_end(_stop(performing.values()))
            raise
        await _to_the_end(_stop(performing.values()))
        return ended

    async def _bring_to_ends(
        self, plan: Plan, state: LoopState, tickets: Sequence[Ticket], performing: dict[UUID, asyncio.Task[Ticket]]
    ) -> list[Ticket] | None:
        known = {ticket.operation_id: ticket for ticket in tickets}
        tries: Counter[UUID] = Counter()
        over = False  # the run's time: what is under way comes to its end, nothing more is begun
        while still_open := _still_open(plan, known, performing, over=over):
            if not over and _is_late(plan):
                over = True
                seen = await self._look(plan.run_id, [ticket.operation_id for ticket in still_open], close=True)
                if seen.cancel_requested:
                    return None
                known |= {ticket.operation_id: ticket for ticket in seen.tickets}
                continue
            for ticket in still_open:
                if ticket.ready and ticket.operation_id not in performing and (not over or _is_out(ticket)):
                    delay = _again_after(tries[ticket.operation_id])
                    work = self._perform(plan, ticket, delay, over=over)
                    performing[ticket.operation_id] = asyncio.create_task(work)
                    tries[ticket.operation_id] += 1
            waiting = [ticket for ticket in still_open if not ticket.ready]
            if await self._news(performing, waiting, None if over else plan.ends_at):
                seen = await self._look(plan.run_id, [ticket.operation_id for ticket in waiting])
                if seen.cancel_requested:
                    return None
                known |= {ticket.operation_id: ticket for ticket in seen.tickets}
            for operation_id in [i for i, task in performing.items() if task.done()]:
                known[operation_id] = performing.pop(operation_id).result()
                if _is_out(known[operation_id]) and not known[operation_id].ready:
                    self._heard = -1  # the child may have ended after this was read, with news that was looked at
                    tries[operation_id] = 0  # it was no failure: its end is taken up at once
            if not performing and _history_is_long():
                self._continue(plan, state, tuple(known.values()))
        return [known[ticket.operation_id] for ticket in tickets]

    async def _news(
        self, performing: dict[UUID, asyncio.Task[Ticket]], waiting: Sequence[Ticket], ends_at: datetime | None
    ) -> bool:
        """Wait until a call ended, a wake came, or a deadline is over, an approval's or the run's; whether to look."""
        deadlines = [ends_at, *(ticket.deadline_at for ticket in waiting)]
        nearest = min((at for at in deadlines if at is not None), default=None)
        timeout = max(nearest - workflow.now(), DEADLINE_WAIT_MIN) if nearest is not None else None
        try:
            await workflow.wait_condition(
                lambda: self._wakes != self._heard or any(task.done() for task in performing.values()), timeout=timeout
            )
        except TimeoutError:
            return True
        return self._wakes != self._heard

    async def _perform(self, plan: Plan, ticket: Ticket, delay_seconds: float, *, over: bool = False) -> Ticket:
        if delay_seconds:
            await workflow.sleep(delay_seconds)
        if ticket.delegated:
            return await self._delegate(plan, ticket, over=over)
        asked = PerformInput(run_id=plan.run_id, operation_id=ticket.operation_id)
        if ticket.local:
            local: Ticket = await workflow.execute_local_activity(
                "perform",
                asked,
                result_type=Ticket,
                start_to_close_timeout=timedelta(seconds=ticket.timeout_seconds) + LOCAL_SLACK,
                retry_policy=STORE_RETRY,
                cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
            )
            return local
        performed: Ticket = await workflow.execute_activity(
            "perform",
            asked,
            result_type=Ticket,
            task_queue=ticket.queue or None,
            start_to_close_timeout=timedelta(seconds=ticket.timeout_seconds) + PERFORM_SLACK,
            heartbeat_timeout=HEARTBEAT_TIMEOUT,
            retry_policy=STORE_RETRY,
            cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        )
        return performed

    async def _delegate(self, plan: Plan, ticket: Ticket, *, over: bool) -> Ticket:
        """Start the child of a call, or take up its end: an activity of its own, which a worker of before does not have
        and so leaves alone."""
        told: Ticket = await workflow.execute_activity(
            "delegate",
            DelegateInput(run_id=plan.run_id, operation_id=ticket.operation_id, over=over),
            result_type=Ticket,
            start_to_close_timeout=timedelta(seconds=ticket.timeout_seconds) + LOCAL_SLACK,
            heartbeat_timeout=HEARTBEAT_TIMEOUT,
            retry_policy=STORE_RETRY,
            cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        )
        return told

    async def _look(self, run_id: UUID, operation_ids: Sequence[UUID], *, close: bool = False) -> Seen:
        self._heard = self._wakes
        seen: Seen = await workflow.execute_local_activity(
            "look",
            LookInput(run_id=run_id, operation_ids=tuple(operation_ids), close=close, resumption=self._resumption),
            result_type=Seen,
            start_to_close_timeout=LOCAL_TIMEOUT,
            retry_policy=STORE_RETRY,
        )
        return seen

    async def _finish(self, plan: Plan, ended: agent_loop.Finish) -> str:
        """Write the end, also of a cancelled run: its calls in flight are settled or uncertain before.

        A run that came to its own end has none in flight, so its end is a database step like any other.
        """
        asked = FinishInput(
            run_id=plan.run_id,
            resumption=self._resumption,
            outcome=ended.outcome,
            code=ended.code,
            message=ended.message,
            unheard=ended.unheard,
        )
        if ended.outcome != "cancelled" and ended.code != BROKEN:
            written: str = await workflow.execute_local_activity(
                "finish", asked, result_type=str, start_to_close_timeout=LOCAL_TIMEOUT, retry_policy=STORE_RETRY
            )
            return written
        state: str = await workflow.execute_activity(
            "finish",
            asked,
            result_type=str,
            start_to_close_timeout=PERFORM_SLACK,
            heartbeat_timeout=HEARTBEAT_TIMEOUT,
            retry_policy=STORE_RETRY,
        )
        return state


def _is_late(plan: Plan) -> bool:
    return plan.ends_at is not None and workflow.now() >= plan.ends_at


async def _paused(plan: Plan, seconds: float) -> bool:
    """Wait before a failed call is made again; false if the run's time is over by then."""
    if not seconds:
        return True
    left = seconds if plan.ends_at is None else (plan.ends_at - workflow.now()).total_seconds()
    await workflow.sleep(max(min(seconds, left), 0.0))
    return not _is_late(plan)


def _still_open(
    plan: Plan, known: dict[UUID, Ticket], performing: dict[UUID, asyncio.Task[Ticket]], *, over: bool
) -> list[Ticket]:
    """The calls that hold the turn; when the run's time is over, only those that are under way."""
    return [
        ticket
        for ticket in known.values()
        if agent_loop.is_open(plan, ticket) and (not over or ticket.operation_id in performing or _is_out(ticket))
    ]


def _is_out(ticket: Ticket) -> bool:
    """Whether another agent does it, or has done it and nobody has taken that up."""
    return ticket.delegated and ticket.state == "dispatched"


async def _to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """Await what a cancellation of the workflow must not interrupt: it was heard already, or comes too late."""
    task = asyncio.ensure_future(work)
    while True:
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():  # the worker forgets this workflow; it is replayed elsewhere
                raise


async def _stop(tasks: Iterable[asyncio.Task[Ticket]]) -> None:
    """Cancel what still runs and wait until it has ended: each call writes its own outcome."""
    for task in (running := list(tasks)):
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


def _again_after(tries: int) -> float:
    """A call that is still to be performed after it was: something holds it back, so do not hurry."""
    return min(AGAIN_FIRST_SECONDS * 2.0 ** (tries - 1), AGAIN_MAX_SECONDS) if tries else 0.0


def _history_is_long() -> bool:
    """Whether to go on in a new execution: asked only when nothing is under way."""
    info = workflow.info()
    events, size = info.get_current_history_length(), info.get_current_history_size()
    return info.is_continue_as_new_suggested() or events >= HISTORY_EVENTS_MAX or size >= HISTORY_BYTES_MAX


def _broken(error: ActivityError) -> agent_loop.Finish:
    """An activity failed in a way that no retry mends: a fault of ours, named without its details."""
    cause = error.cause
    name = cause.type if isinstance(cause, ApplicationError) and cause.type else type(cause).__name__
    return agent_loop.Finish("failed", BROKEN, f"an activity failed: {name}")

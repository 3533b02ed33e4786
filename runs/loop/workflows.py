"""The workflow of a run: carries out the steps that `agent_loop` decides. Its history holds references only."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from runs.loop import agent_loop
    from runs.loop.contracts import (
        WORKFLOW,
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

HEARTBEAT_TIMEOUT = timedelta(seconds=10)  # how long a dead worker goes unnoticed
STORE_RETRY = RetryPolicy(  # the database is away: go on trying, nothing has left meanwhile
    initial_interval=timedelta(milliseconds=500), backoff_coefficient=2, maximum_interval=timedelta(seconds=5)
)
LOCAL_TIMEOUT = timedelta(seconds=30)  # one database-only step
PERFORM_SLACK = timedelta(minutes=15)  # over a tool's own time-out: store retries, probes and bounded repeats
HISTORY_EVENTS_MAX = 8_000  # then a new execution; the server's own suggestion usually comes first
HISTORY_BYTES_MAX = 8 * 1024 * 1024


@workflow.defn(name=WORKFLOW)
class AgentRun:
    """One run. `wake` carries no data: the database is the truth, and the workflow looks."""

    def __init__(self) -> None:
        self._wakes = 0

    @workflow.signal
    def wake(self) -> None:
        self._wakes += 1

    @workflow.run
    async def run(self, given: RunInput) -> str:
        try:
            ended = await self._loop(given.plan, given.state)
        except ActivityError as error:
            if not is_cancelled_exception(error):
                ended = _broken(error)
            else:
                ended = agent_loop.Finish("cancelled")
        except asyncio.CancelledError:
            ended = agent_loop.Finish("cancelled")
        return await self._finish(given.plan, ended)

    async def _loop(self, plan: Plan, state: LoopState) -> agent_loop.Finish:
        state, step = agent_loop.begin(plan, state)
        while True:
            match step:
                case agent_loop.Finish():
                    return step
                case agent_loop.Think():
                    thought = await self._think(plan, state, step)
                    state, step = agent_loop.after_thought(plan, state, thought)
                case agent_loop.Act():
                    tickets = await self._act(plan, step.tickets)
                    if tickets is None:
                        return agent_loop.Finish("cancelled")
                    state, step = agent_loop.after_acts(plan, state, tickets)
                    if isinstance(step, agent_loop.Think) and _history_is_long():
                        workflow.continue_as_new(RunInput(plan=plan, state=agent_loop.rewind(state)))

    async def _think(self, plan: Plan, state: LoopState, step: agent_loop.Think) -> Thought:
        if step.delay_seconds:
            await workflow.sleep(step.delay_seconds)
        thought: Thought = await workflow.execute_activity(
            "think",
            ThinkInput(
                run_id=plan.run_id,
                turn=state.turn,
                attempt=state.model_attempt,
                tools=step.tools,
                calls_allowed=step.calls_allowed,
                limit=state.limit,
            ),
            result_type=Thought,
            start_to_close_timeout=timedelta(seconds=plan.model_timeout_seconds) + PERFORM_SLACK,
            heartbeat_timeout=HEARTBEAT_TIMEOUT,
            retry_policy=STORE_RETRY,
            cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        )
        return thought

    async def _act(self, plan: Plan, tickets: Sequence[Ticket]) -> list[Ticket] | None:
        """Bring every call to its end, in parallel; None when the run is being cancelled."""
        performing: dict[UUID, asyncio.Task[Ticket]] = {}
        try:
            return await self._bring_to_ends(plan, tickets, performing)
        except asyncio.CancelledError:
            for task in performing.values():
                task.cancel()
            await asyncio.gather(*performing.values(), return_exceptions=True)
            raise

    async def _bring_to_ends(
        self, plan: Plan, tickets: Sequence[Ticket], performing: dict[UUID, asyncio.Task[Ticket]]
    ) -> list[Ticket] | None:
        known = {ticket.operation_id: ticket for ticket in tickets}
        looked_at = self._wakes
        while still_open := [t for t in known.values() if agent_loop.is_open(plan, t)]:
            for ticket in still_open:
                if ticket.ready and ticket.operation_id not in performing:
                    performing[ticket.operation_id] = asyncio.create_task(self._perform(plan, ticket))
            await self._news(looked_at, performing, still_open)
            for operation_id in [i for i, task in performing.items() if task.done()]:
                known[operation_id] = performing.pop(operation_id).result()
            waiting = [t.operation_id for t in known.values() if agent_loop.is_open(plan, t) and not t.ready]
            if not waiting:
                continue
            looked_at = self._wakes
            seen = await self._look(plan.run_id, waiting)
            if seen.cancel_requested:
                await asyncio.gather(*performing.values())
                return None
            known |= {ticket.operation_id: ticket for ticket in seen.tickets}
        return [known[ticket.operation_id] for ticket in tickets]

    async def _news(
        self, looked_at: int, performing: dict[UUID, asyncio.Task[Ticket]], still_open: Sequence[Ticket]
    ) -> None:
        """Wait until a call ended, a wake came, or an approval's deadline is over."""
        deadlines = [t.deadline_at for t in still_open if t.deadline_at is not None and not t.ready]
        nearest = min(deadlines, default=None)
        timeout = max(nearest - workflow.now(), timedelta(0)) if nearest is not None else None
        try:
            await workflow.wait_condition(
                lambda: self._wakes != looked_at or any(task.done() for task in performing.values()), timeout=timeout
            )
        except TimeoutError:
            return

    async def _perform(self, plan: Plan, ticket: Ticket) -> Ticket:
        performed: Ticket = await workflow.execute_activity(
            "perform",
            PerformInput(run_id=plan.run_id, operation_id=ticket.operation_id),
            result_type=Ticket,
            start_to_close_timeout=timedelta(seconds=ticket.timeout_seconds) + PERFORM_SLACK,
            heartbeat_timeout=HEARTBEAT_TIMEOUT,
            retry_policy=STORE_RETRY,
            cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        )
        return performed

    async def _look(self, run_id: UUID, operation_ids: Sequence[UUID]) -> Seen:
        seen: Seen = await workflow.execute_local_activity(
            "look",
            LookInput(run_id=run_id, operation_ids=tuple(operation_ids)),
            result_type=Seen,
            start_to_close_timeout=LOCAL_TIMEOUT,
            retry_policy=STORE_RETRY,
        )
        return seen

    async def _finish(self, plan: Plan, ended: agent_loop.Finish) -> str:
        """Write the end, also of a cancelled run: its calls in flight are settled or uncertain before."""
        state: str = await workflow.execute_activity(
            "finish",
            FinishInput(run_id=plan.run_id, outcome=ended.outcome, code=ended.code, message=ended.message),
            result_type=str,
            start_to_close_timeout=PERFORM_SLACK,
            heartbeat_timeout=HEARTBEAT_TIMEOUT,
            retry_policy=STORE_RETRY,
        )
        return state


def _history_is_long() -> bool:
    """Whether to go on in a new execution: asked between two turns only, when nothing is under way."""
    info = workflow.info()
    events, size = info.get_current_history_length(), info.get_current_history_size()
    return info.is_continue_as_new_suggested() or events >= HISTORY_EVENTS_MAX or size >= HISTORY_BYTES_MAX


def _broken(error: ActivityError) -> agent_loop.Finish:
    """An activity failed in a way that no retry mends: a fault of ours, named without its details."""
    cause = error.cause
    name = cause.type if isinstance(cause, ApplicationError) and cause.type else type(cause).__name__
    return agent_loop.Finish("failed", "internal_error", f"an activity failed: {name}")

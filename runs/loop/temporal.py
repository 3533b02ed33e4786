"""The Temporal client of this process, for code that is not async: one connection, on a loop of its own."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, TypeVar
from uuid import UUID

from django.conf import settings
from temporalio.api.enums.v1 import PendingActivityState, PendingWorkflowTaskState
from temporalio.api.workflowservice.v1 import DescribeWorkflowExecutionResponse
from temporalio.client import Client, WorkflowHandle
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from kernel_project.primitives import ids, traces
from kernel_project.primitives.errors import Unavailable
from runs.loop import payloads
from runs.loop.contracts import WORKFLOW, RunInput

logger = logging.getLogger(__name__)

T = TypeVar("T")

CONNECT_TIMEOUT_SECONDS = 3.0
RPC_TIMEOUT = timedelta(seconds=5)  # of one request; a start that takes longer is unclear
RESUMPTION = "resumption"  # a memo, kept through Continue-As-New: which resume an execution belongs to
CLOSING_LOOKS_MAX = 20  # while a failed execution closes
CLOSING_LOOK_SECONDS = 0.2
WAKES_AT_ONCE_MAX = 50
WAKE_ALL_SECONDS_MAX = 30.0  # of one sweep
LOOKS_AT_ONCE_MAX = 20
LOOKS_FIRST = 3  # workflows that must all go unanswered before Temporal counts as away
LOOK_ALL_SECONDS_MAX = 30.0  # of one tick
TURNED_DOWN = frozenset(
    {
        RPCStatusCode.INVALID_ARGUMENT,
        RPCStatusCode.NOT_FOUND,  # of the namespace
        RPCStatusCode.PERMISSION_DENIED,
        RPCStatusCode.UNAUTHENTICATED,
        RPCStatusCode.FAILED_PRECONDITION,
        RPCStatusCode.UNIMPLEMENTED,
    }
)
Standing = Literal["absent", "running", "ended"]


class Unclear(Unavailable):
    """The request may or may not have reached Temporal."""

    code = "temporal_unclear"


class Down(Unavailable):
    """Temporal cannot be reached; the request provably never left."""

    code = "temporal_unavailable"


class Turned(Down):
    """Temporal is there and turned the request down: nothing was started, and it was not away."""

    code = "temporal_refused"


async def connect() -> Client:
    """A client for the configured server. Raises whatever the library raises when there is none."""
    return await Client.connect(
        settings.TEMPORAL_ADDRESS, namespace=settings.TEMPORAL_NAMESPACE, data_converter=payloads.converter(),
        interceptors=traces.interceptors(),
    )  # fmt: skip


class _Loop:
    """A daemon thread with an event loop and, once it was needed, a connected client."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._client: Client | None = None

    def run(self, work: Coroutine[Any, Any, T], timeout_seconds: float) -> T:
        """Wait for the work. Raises Unclear when it takes too long."""
        asked = asyncio.run_coroutine_threadsafe(work, self._started())
        try:
            return asked.result(timeout_seconds)
        except TimeoutError as error:
            asked.cancel()
            raise Unclear("the workflow engine does not answer; it is being looked into") from error

    def send(self, work: Coroutine[Any, Any, Any]) -> None:
        """Start the work and do not wait for it."""
        asyncio.run_coroutine_threadsafe(work, self._started())

    async def client(self) -> Client:
        if self._client is None:
            try:
                self._client = await asyncio.wait_for(connect(), CONNECT_TIMEOUT_SECONDS)
            except (RuntimeError, RPCError, TimeoutError) as error:
                raise Down("the workflow engine cannot be reached; try again later") from error
        return self._client

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="temporal-client", daemon=True).start()
            return self._loop


_loop = _Loop()
WAIT_SECONDS = CONNECT_TIMEOUT_SECONDS + RPC_TIMEOUT.total_seconds() + 2


def call(work: Coroutine[Any, Any, T]) -> T:
    """Wait for a request of another module. Raises Unclear when it takes too long."""
    return _loop.run(work, WAIT_SECONDS)


async def client() -> Client:
    """This process's client, on the loop of `call`. Raises Down when there is no server."""
    return await _loop.client()


def start(given: RunInput) -> None:
    """Start the run's workflow; an acknowledgement, or that it is running already, is success.

    Raises Down when nothing was sent, Unclear when nobody knows.
    """
    _loop.run(_start(given), WAIT_SECONDS)


async def _start(given: RunInput) -> None:
    client = await _loop.client()
    try:
        await client.start_workflow(
            WORKFLOW,
            given,
            id=ids.workflow_id(given.plan.run_id),
            task_queue=settings.TEMPORAL_TASK_QUEUE,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE_FAILED_ONLY,
            rpc_timeout=RPC_TIMEOUT,
        )
    except WorkflowAlreadyStartedError:
        return
    except RPCError as error:
        raise _unconfirmed(error, "start") from error


def _unconfirmed(error: RPCError, what: str) -> Down | Unclear:
    """What an error says of a start or a resume: nothing was sent, it was turned down, or nobody knows."""
    if error.status in TURNED_DOWN:
        return Turned(f"the workflow engine turned the {what} down ({error.status.name.lower()}): look at its settings")
    if error.status == RPCStatusCode.UNAVAILABLE and "Connection refused" in error.message:
        return Down("the workflow engine cannot be reached; try again later")
    return Unclear(f"the workflow engine did not confirm the {what}; it is being looked into")


def start_again(given: RunInput) -> None:
    """Start another execution of a run that had failed; that this very one is running already is success.

    Raises Down when nothing was sent, Unclear when nobody knows.
    """
    _loop.run(_start_again(given), WAIT_SECONDS)


async def _start_again(given: RunInput) -> None:
    client = await _loop.client()
    for _ in range(CLOSING_LOOKS_MAX):
        try:
            await client.start_workflow(
                WORKFLOW,
                given,
                id=ids.workflow_id(given.plan.run_id),
                task_queue=settings.TEMPORAL_TASK_QUEUE,
                id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
                id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
                memo={RESUMPTION: given.resumption},
                rpc_timeout=RPC_TIMEOUT,
            )
            return
        except WorkflowAlreadyStartedError:  # ours, whose answer was lost, or the failed one, which closes just now
            if await _resumption(given.plan.run_id) == given.resumption:
                return
            await asyncio.sleep(CLOSING_LOOK_SECONDS)
        except RPCError as error:
            raise _unconfirmed(error, "resume") from error
    raise Unclear("the failed execution has not closed yet; try again in a few seconds")


def resumption(run_id: UUID) -> int | None:
    """Which resume the run's live execution belongs to; None if none is live. Raises Unavailable."""
    return _loop.run(_resumption(run_id), WAIT_SECONDS)


async def _resumption(run_id: UUID) -> int | None:
    client = await _loop.client()
    try:
        found = await client.get_workflow_handle(ids.workflow_id(run_id)).describe(rpc_timeout=RPC_TIMEOUT)
        return int((await found.memo()).get(RESUMPTION, 0)) if found.close_time is None else None
    except RPCError as error:
        if error.status == RPCStatusCode.NOT_FOUND:
            return None
        raise Unclear("the workflow engine does not answer") from error


def standing(run_id: UUID) -> Standing:
    """Whether Temporal knows the run's workflow. Raises Unavailable when it cannot be asked."""
    return _loop.run(_standing(run_id), WAIT_SECONDS)


async def _standing(run_id: UUID) -> Standing:
    client = await _loop.client()
    try:
        found = await client.get_workflow_handle(ids.workflow_id(run_id)).describe(rpc_timeout=RPC_TIMEOUT)
    except RPCError as error:
        if error.status == RPCStatusCode.NOT_FOUND:
            return "absent"
        raise Unclear("the workflow engine does not answer") from error
    return "running" if found.close_time is None else "ended"


@dataclass(frozen=True)
class Sight:
    """What Temporal knows of a run's workflow: a task that nobody took yet, or one that fails again and again."""

    standing: Standing
    untaken_since: datetime | None = None
    task_failures: int = 0
    failure: str = ""


def look_at_all(run_ids: Sequence[UUID]) -> list[Sight | None]:
    """Why these workflows might not move, in order; None for one that Temporal does not answer about.

    A few go first: raises Unavailable when Temporal answers about none of them.
    """
    return _loop.run(_look_at_all(run_ids), LOOK_ALL_SECONDS_MAX)


async def _look_at_all(run_ids: Sequence[UUID]) -> list[Sight | None]:
    few = asyncio.Semaphore(LOOKS_AT_ONCE_MAX)

    async def one(run_id: UUID) -> Sight | None:
        async with few:
            try:
                return await _look_at(run_id)
            except Unavailable:
                return None

    first = await asyncio.gather(*(one(run_id) for run_id in run_ids[:LOOKS_FIRST]))
    if first and not any(first):
        raise Unclear("the workflow engine does not answer")
    return [*first, *await asyncio.gather(*(one(run_id) for run_id in run_ids[LOOKS_FIRST:]))]


async def _look_at(run_id: UUID) -> Sight:
    handle = (await _loop.client()).get_workflow_handle(ids.workflow_id(run_id))
    try:
        found = await handle.describe(rpc_timeout=RPC_TIMEOUT)
        task = found.raw_description.pending_workflow_task
        failure = await _failure(handle) if task.attempt > 1 and found.close_time is None else ""
    except RPCError as error:
        if error.status == RPCStatusCode.NOT_FOUND:
            return Sight("absent")
        raise Unclear("the workflow engine does not answer") from error
    if found.close_time is not None:
        return Sight("ended")
    return Sight("running", _untaken_since(found.raw_description), max(task.attempt - 1, 0), failure)


def _untaken_since(described: DescribeWorkflowExecutionResponse) -> datetime | None:
    """Since when the longest waiting task is in the queue."""
    waiting = [
        one.scheduled_time
        for one in described.pending_activities
        if one.state == PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED
    ]
    task = described.pending_workflow_task
    if task.state == PendingWorkflowTaskState.PENDING_WORKFLOW_TASK_STATE_SCHEDULED:
        waiting.append(task.scheduled_time)
    return min((at.ToDatetime(tzinfo=UTC) for at in waiting if at.seconds), default=None)


async def _failure(handle: WorkflowHandle[Any, Any]) -> str:
    """The message of the last failure of the workflow's task."""
    message = ""
    async for event in handle.fetch_history_events(rpc_timeout=RPC_TIMEOUT):
        if event.HasField("workflow_task_failed_event_attributes"):
            message = event.workflow_task_failed_event_attributes.failure.message
        elif event.HasField("workflow_task_timed_out_event_attributes"):
            message = "it took too long"
    return message


def wake(run_id: UUID, *, cancel: bool = False) -> None:
    """Tell a run's workflow that there is news, and go on at once. A wake that is lost is sent again by the sweep."""
    _loop.send(_wake(run_id, cancel=cancel))


def wake_all(runs: Sequence[tuple[UUID, bool]]) -> list[UUID]:
    """Wake each of these runs, or cancel it where that is true; returns those of whom Temporal did not take it.

    Waits for the acknowledgements. One run goes first: while Temporal is away, the others are not tried.
    """
    try:
        return _loop.run(_wake_all(runs), WAKE_ALL_SECONDS_MAX)
    except Unclear:
        return [run_id for run_id, _ in runs]


async def _wake_all(runs: Sequence[tuple[UUID, bool]]) -> list[UUID]:
    if not runs or not await _wake(runs[0][0], cancel=runs[0][1]):
        return [run_id for run_id, _ in runs]
    rest, few = runs[1:], asyncio.Semaphore(WAKES_AT_ONCE_MAX)

    async def one(run_id: UUID, *, cancel: bool) -> bool:
        async with few:
            return await _wake(run_id, cancel=cancel)

    taken = await asyncio.gather(*(one(run_id, cancel=cancel) for run_id, cancel in rest))
    return [run_id for (run_id, _), was_taken in zip(rest, taken, strict=True) if not was_taken]


async def _wake(run_id: UUID, *, cancel: bool) -> bool:
    """Whether Temporal took it, or has no such workflow that runs: then there is nobody to wake."""
    try:
        handle = (await _loop.client()).get_workflow_handle(ids.workflow_id(run_id))
        if cancel:
            await handle.cancel(rpc_timeout=RPC_TIMEOUT)
        else:
            await handle.signal("wake", rpc_timeout=RPC_TIMEOUT)
    except (RPCError, Unavailable) as error:
        logger.info("run %s was not woken (%s); the sweep will", run_id, type(error).__name__)
        return isinstance(error, RPCError) and error.status == RPCStatusCode.NOT_FOUND
    return True

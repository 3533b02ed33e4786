"""The activities of a run: doors from Temporal to the services. They decide nothing about the domain."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from django.db import InterfaceError, OperationalError
from obstore.exceptions import BaseError
from psycopg_pool import PoolTimeout
from temporalio import activity
from temporalio.exceptions import ApplicationError

from kernel_project.primitives import logs
from kernel_project.primitives.errors import Unavailable
from runs.boundary import live
from runs.boundary import perform as boundary
from runs.boundary.models import port
from runs.boundary.models.errors import ModelError
from runs.boundary.threads import calling, in_thread, to_the_end
from runs.loop import delegations, endings, sweeps, turns
from runs.loop.contracts import DelegateInput, FinishInput, LookInput, PerformInput, Seen, ThinkInput, Thought, Ticket
from runs.loop.starts import KeyInProgress

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

BEAT_SECONDS = 1.0  # a tenth of the workflow's heartbeat time-out; a cancel comes back with the next beat
SUCCEEDED = "succeeded"
NOT_CONFIRMED = (Unavailable, KeyInProgress)
STORE_DOWN = (OperationalError, InterfaceError, PoolTimeout, BaseError)  # the database, the object store


def guarded(work: Callable[P, Any]) -> Callable[P, Any]:
    """Tell Temporal what kind of failure it was, and nothing else: no text of ours stands in its history.

    The store being away is retried; anything unexpected is a fault of ours, ends the run under that name, and is in
    the worker's log.
    """

    @wraps(work)
    async def guard(*args: P.args, **kwargs: P.kwargs) -> Any:
        with logs.about(**{name: getattr(args[0], name, None) for name in ("run_id", "operation_id")}):
            return await judged(*args, **kwargs)

    async def judged(*args: P.args, **kwargs: P.kwargs) -> Any:
        try:
            return await work(*args, **kwargs)
        except asyncio.CancelledError:
            if stopping():
                raise ApplicationError("the worker is stopping", type="WorkerStopping") from None
            raise
        except NOT_CONFIRMED:
            raise ApplicationError("the start of a run was not confirmed", type="StartUnconfirmed") from None
        except STORE_DOWN as error:
            logger.warning("%s: the store does not answer (%s)", work.__name__, type(error).__name__)
            raise ApplicationError("the store does not answer", type="StoreUnavailable") from None
        except Exception as error:
            logger.exception("%s failed", work.__name__)
            raise ApplicationError("an activity failed", type=type(error).__name__, non_retryable=True) from None

    return guard


def stopping() -> bool:
    """Whether it is this worker, or its claim on the activity, that ends, and not the run: then somebody goes on."""
    details = activity.cancellation_details()
    return details is not None and not details.cancel_requested


@contextlib.asynccontextmanager
async def beating() -> AsyncIterator[None]:
    """Heartbeat while the block runs, so that a dead worker is noticed and a cancellation reaches us.

    A local activity lives in its workflow's task and has no heartbeat.
    """
    if activity.info().is_local:
        yield
        return

    async def beat() -> None:
        while True:
            await asyncio.sleep(BEAT_SECONDS)  # most calls are over before, and each beat is a request
            activity.heartbeat()

    task = asyncio.create_task(beat())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@activity.defn(name="think")
@guarded
async def think(asked: ThinkInput) -> Thought:
    """One model call: intent, question, answer, and what the answer wants, written down."""
    async with beating():
        step = await in_thread(turns.open_turn, asked, activity.heartbeat)
        if isinstance(step, Thought):
            return step
        try:
            async with live.speaking(asked.run_id, asked.turn):
                answer = await port.ask(step.request)
        except ModelError as error:
            return await to_the_end(turns.fail_turn, asked, step, error)
        except asyncio.CancelledError:
            if not stopping():
                await to_the_end(turns.stop_turn, asked, step)
            raise
        return await to_the_end(turns.close_turn, asked, step, answer)


@activity.defn(name="perform")
@guarded
async def perform(asked: PerformInput) -> Ticket:
    """One tool call, from its intent to its outcome."""
    async with beating():
        settled = await boundary.perform(asked.operation_id, activity.heartbeat, stopping)
        if settled.state == SUCCEEDED:  # by far most: all that the workflow needs to know of it
            return Ticket(operation_id=asked.operation_id, state=SUCCEEDED)
        found = await in_thread(turns.tickets, asked.run_id, (asked.operation_id,))
    return found[0]


@activity.defn(name="delegate")
@guarded
async def delegate(asked: DelegateInput) -> Ticket:
    """Another agent does a task: start its run, or take up how that ended."""
    async with beating():
        return await calling(delegations.delegate, asked, activity.heartbeat)


@activity.defn(name="look")
@guarded
async def look(asked: LookInput) -> Seen:
    """What the database says now; the news is read with this."""
    return await in_thread(
        sweeps.look, asked.run_id, asked.operation_ids, close=asked.close, resumption=asked.resumption
    )


@activity.defn(name="finish")
@guarded
async def finish(asked: FinishInput) -> str:
    """End the run, after every call that is still out was given an outcome."""
    async with beating():
        await delegations.give_up(await in_thread(endings.in_flight, asked.run_id, asked.resumption))
        return await in_thread(endings.finish, asked)


ACTIVITIES: Sequence[Callable[..., Any]] = (think, perform, delegate, look, finish)

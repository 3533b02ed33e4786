"""An outcome that the database cannot take yet: kept, tried again, and settled by the next delivery at the latest.

History carries references only, so it is not the engine that keeps it, but the store that keeps results anyway
(docs/decisions/0008).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

from django.db import InterfaceError, OperationalError
from obstore.exceptions import BaseError
from psycopg_pool import PoolTimeout
from pydantic import BaseModel, ConfigDict, ValidationError

from kernel_project.primitives.keyring import Damaged
from runs.boundary import artifacts, faults, operations
from runs.boundary.contracts import Dispatch, EffectResult
from runs.boundary.operations import Settled
from runs.boundary.results import plain
from runs.boundary.threads import in_thread, uninterrupted

logger = logging.getLogger(__name__)

STORE_DOWN = (OperationalError, InterfaceError, PoolTimeout)
SETTLE_SECONDS_MAX = 60.0  # then the engine's redelivery goes on, with what was kept
SETTLE_PAUSE_FIRST_SECONDS = 0.1
SETTLE_PAUSE_MAX_SECONDS = 5.0


class Outcome(BaseModel):
    """What one attempt learnt: an answer, or that nothing was done."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")

    version: int = 1
    result: EffectResult | None = None
    error_class: str = ""
    message: str = ""
    found_by: str = ""


async def settle(given: Dispatch, outcome: Outcome) -> Settled:
    """Write the outcome of an attempt, also while the caller is cancelled and while the database comes back.

    Raises what the database raised when it stayed away for SETTLE_SECONDS_MAX; the outcome is kept then, and `kept`
    finds it.
    """
    return await uninterrupted(asyncio.ensure_future(_settle(given, outcome)))


async def _settle(given: Dispatch, outcome: Outcome) -> Settled:
    deadline = time.monotonic() + SETTLE_SECONDS_MAX
    pause, is_kept = SETTLE_PAUSE_FIRST_SECONDS, False
    while True:
        try:
            settled = await in_thread(write, given, outcome)
        except STORE_DOWN as error:
            if not is_kept:
                is_kept = await asyncio.to_thread(_keep, given, outcome)
            if time.monotonic() + pause > deadline:
                raise
            logger.warning("operation %s cannot be settled yet: %s", given.operation_id, type(error).__name__)
        else:
            if is_kept:
                await asyncio.to_thread(drop, given)
            return settled
        given.heartbeat()
        await asyncio.sleep(pause)
        pause = min(2 * pause, SETTLE_PAUSE_MAX_SECONDS)


def write(given: Dispatch, outcome: Outcome) -> Settled:
    """One try to write the outcome into the row."""
    faults.reach("before_settle", given.tool)
    if outcome.result is None:
        return operations.settle_not_done(given, outcome.error_class, outcome.message)
    facts: dict[str, Any] = {"found_by": outcome.found_by} if outcome.found_by else {}
    return operations.settle_answer(given, outcome.result, **facts)


def _keep(given: Dispatch, outcome: Outcome) -> bool:
    result = plain(outcome.result) if outcome.result is not None else None
    data = outcome.model_copy(update={"result": result}).model_dump_json().encode()
    return _tried(lambda: artifacts.keep_outcome(given.operation_id, given.attempt, data))


def kept(given: Dispatch) -> Outcome | None:
    """What an earlier delivery learnt and could not write; None if there is nothing, or nothing that can be read.

    Raises KeyUnavailable if it can be read once its key is configured again.
    """
    try:
        data = artifacts.kept_outcome(given.operation_id, given.attempt)
        return None if data is None else Outcome.model_validate_json(data)
    except (BaseError, OSError, ValidationError, Damaged) as error:
        logger.warning("what was kept of operation %s is lost: %s", given.operation_id, type(error).__name__)
        return None


def drop(given: Dispatch) -> None:
    """Forget what was kept, once the row has it."""
    _tried(lambda: artifacts.drop_outcome(given.operation_id, given.attempt))


def _tried(work: Callable[[], None]) -> bool:
    try:
        work()
    except (BaseError, OSError) as error:
        logger.warning("the object store does not answer: %s", type(error).__name__)
        return False
    return True

"""What is done for sandboxes besides running commands: sweep up after dead workers, and say what this machine can do.

A worker does it at its start and from then on, because only it sees its machine; Celery's beat does it too.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Collection
from datetime import timedelta
from uuid import UUID

from django.conf import settings
from django.db import Error
from django.db.models import DateTimeField, F, Func
from django.db.models.functions import Now
from obstore.exceptions import BaseError
from psycopg_pool import PoolTimeout

from runs.boundary.sandbox import cgroups, drivers, lifecycle, sweeping
from runs.boundary.sandbox.contracts import Capabilities, Left
from runs.boundary.sandbox.docker import Docker
from runs.boundary.sandbox.engine import EngineSilent
from runs.boundary.sandbox.lifecycle import End, Life
from runs.boundary.threads import in_thread, with_clean_connection
from runs.models import Operation, Sandbox, SandboxReport

logger = logging.getLogger(__name__)

PERIOD_SECONDS = 30.0
REPORT_LIVES = timedelta(seconds=4 * PERIOD_SECONDS)  # then its worker is taken for gone
REPORTS_KEPT = timedelta(days=1)
REPORTS_MAX = 200  # machines shown; those that can run nothing come first
SETTLES_WITHIN = timedelta(seconds=120)  # a worker tells an end before this; a younger row is left to it
FOREIGN_AFTER = timedelta(minutes=10)  # a row of a machine that did not come back
ROWS_MAX = 1_000  # looked at by one sweep
SENTENCE_CHARS_MAX = 300
STATE = Operation.State


@contextlib.asynccontextmanager
async def kept_up() -> AsyncIterator[None]:
    """Sweep and report at once, and from then on while the block runs. Never fails the block."""
    task = asyncio.create_task(_keep_up())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _keep_up() -> None:
    while True:
        for work in (report, sweep):
            try:
                await in_thread(work)
            except Exception as error:  # the next round comes; a worker must not end for this
                logger.warning("sandboxes: %s failed: %s", work.__name__, type(error).__name__)
        await asyncio.sleep(PERIOD_SECONDS)


def report() -> Capabilities:
    """Find out what this machine can enforce, and write it down for whoever looks from another one."""
    found = drivers.chosen().capabilities()
    told = {
        "sentence": found.sentence()[:SENTENCE_CHARS_MAX],
        "unavailable": found.unavailable,
        "problems": list(found.problems),
        "reported_at": Now(),
    }
    SandboxReport.objects.update_or_create(place=lifecycle.place(), defaults=told)
    SandboxReport.objects.filter(reported_at__lt=Now() - REPORTS_KEPT).delete()
    return found


def living_reports() -> list[SandboxReport]:
    """What the workers that live say of their machines."""
    living = SandboxReport.objects.filter(reported_at__gt=Now() - REPORT_LIVES)
    return list(living.order_by("-unavailable", "place")[:REPORTS_MAX])


def living_count() -> int:
    """How many sandboxes were told as created and not yet as destroyed."""
    return Sandbox.objects.count()


def sweep() -> int:
    """End and remove what dead workers left on this machine, and tell it; returns how many sandboxes that were.

    Never one whose operation may still be under way here. Harmless to repeat, and beside itself.
    """
    swept = set(sweeping.sweep(_without_command))
    driver = drivers.chosen()
    if isinstance(driver, Docker):
        swept |= set(_sweep_containers(driver))
    sweeping.sweep_folders(settings.WORKSPACE_ROOT)
    swept |= {str(life.operation_id) for life in _tell_ends()}
    if swept:
        logger.info("swept %s sandboxes: %s", len(swept), ", ".join(sorted(swept)[:20]))
    return len(swept)


def _sweep_containers(driver: Docker) -> list[str]:
    try:
        return asyncio.run(driver.sweep(settings.KERNEL_SOURCE_ID, _with_outcome))
    except EngineSilent as error:
        logger.warning("containers cannot be swept: %s", error)
        return []


def _without_command(operation_ids: Collection[str]) -> set[str]:
    """Of these, the operations of ours for which no command may be running."""
    return {str(row.id) for row in _known(operation_ids) if row.state != STATE.DISPATCHED}


def _with_outcome(operation_ids: Collection[str]) -> set[str]:
    """Of these, the operations of ours whose container nobody will ask for any more.

    While an operation is uncertain its container is the evidence. Asked on a thread that keeps no connection.
    """
    known = with_clean_connection(lambda: _known(operation_ids))
    return {str(row.id) for row in known if row.state not in (STATE.DISPATCHED, STATE.UNCERTAIN)}


def _known(operation_ids: Collection[str]) -> list[Operation]:
    return list(Operation.objects.filter(id__in=[found for text in operation_ids if (found := _uuid(text))]))


def _uuid(text: str) -> UUID | None:
    with contextlib.suppress(ValueError):
        return UUID(text)
    return None


def _tell_ends() -> list[Life]:
    """Tell the end of sandboxes that are over and whose worker has not told it."""
    told = []
    clock = Func(function="clock_timestamp", output_field=DateTimeField())
    for row in Sandbox.objects.annotate(age=clock - F("created_at")).order_by("created_at")[:ROWS_MAX]:
        life = Life(row.operation_id, row.attempt, "docker" if row.driver == "docker" else "bubblewrap")
        try:
            end = _end_of(row, row.age)
            if end is not None and lifecycle.destroyed(life, end):
                told.append(life)
        except (Error, PoolTimeout, BaseError, OSError, EngineSilent) as error:
            logger.warning(
                "the end of operation %s's sandbox is told later: %s", life.operation_id, type(error).__name__
            )
    return told


def _end_of(row: Sandbox, age: timedelta) -> End | None:
    """None while it may live, or while its worker may tell its end."""
    under_way = Operation.objects.filter(id=row.operation_id, state=STATE.DISPATCHED, attempt=row.attempt).exists()
    if row.place != lifecycle.place():
        return None if under_way or age < FOREIGN_AFTER else End("swept", "its machine did not say how it ended")
    if cgroups.is_alive(row.worker):
        return None if under_way or age < SETTLES_WITHIN else End("swept", "its worker could not say how it ended")
    if row.driver == "docker":
        return _container_end(row)
    return End("swept", "its worker died")


def _container_end(row: Sandbox) -> End | None:
    """A container goes on when its worker dies. None while it does."""
    left: Left = asyncio.run(drivers.chosen().look(str(row.operation_id)))
    if left.state == "running":
        return None
    log = left.result.log() if left.result else ""
    return End("swept", f"its worker died; the container is {left.state.replace('_', ' ')}", left.result, log)

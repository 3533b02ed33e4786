"""How the life of a sandbox is told, each end once: created before its command begins, destroyed when nothing is left.

Never in the way of an effect: an end that cannot be told now is told by the sweep.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

from django.db import Error, transaction
from obstore.exceptions import BaseError
from psycopg_pool import PoolTimeout

from kernel_project.primitives import ids
from outbox import services as outbox
from outbox.contracts import NewEvent
from runs.boundary import artifacts, journal
from runs.boundary.artifacts import Staged
from runs.boundary.contracts import Dispatch
from runs.boundary.sandbox import cgroups
from runs.boundary.sandbox.contracts import DriverName, SandboxResult
from runs.boundary.threads import to_the_end
from runs.models import Artifact, Operation, Sandbox

logger = logging.getLogger(__name__)

# ended: the command ended by itself. killed: a limit or a cancellation ended it. crashed: the sandbox died under it.
# swept: its worker was gone, and somebody else found that it is over.
Status = Literal["ended", "killed", "crashed", "swept"]


@dataclass(frozen=True)
class End:
    """How a sandbox ended. `log` is what its command had said, where no result will hold it."""

    status: Status
    reason: str
    result: SandboxResult | None = None
    log: str = ""


@dataclass(frozen=True)
class Life:
    """The sandbox of one attempt of one operation."""

    operation_id: UUID
    attempt: int
    driver: DriverName

    @classmethod
    def of(cls, dispatch: Dispatch, driver: DriverName) -> Life:
        return cls(dispatch.operation_id, dispatch.attempt, driver)

    async def created(self) -> None:
        """Tell that it stands. Raises what the database raises: the command must not begin then."""
        await to_the_end(created, self)

    async def ended(self, end: End) -> None:
        """Tell that it is gone, also while the caller is cancelled. Raises nothing of the stores: the sweep is next."""
        await to_the_end(_told, self, end)


def created(life: Life) -> None:
    """Write the row and `sandbox.created`. What earlier attempts left of their rows is told as swept."""
    for attempt in Sandbox.objects.filter(operation_id=life.operation_id, attempt__lt=life.attempt):
        destroyed(Life(life.operation_id, attempt.attempt, life.driver), End("swept", "another attempt began"))
    operation = Operation.objects.get(id=life.operation_id)
    with transaction.atomic():
        Sandbox.objects.get_or_create(
            operation_id=life.operation_id,
            attempt=life.attempt,
            defaults={"driver": life.driver, "place": place(), "worker": worker()},
        )
        outbox.append([_event(operation, life.attempt, "created", {"status": "created", "driver": life.driver})])


def destroyed(life: Life, end: End) -> bool:
    """Delete the row and write `sandbox.destroyed`, with the log as an artifact; false if it was told before."""
    staged = _staged(end.log)
    operation = Operation.objects.filter(id=life.operation_id).first()
    with transaction.atomic():
        deleted, _ = Sandbox.objects.filter(operation_id=life.operation_id, attempt=life.attempt).delete()
        if not deleted or operation is None:
            return False
        if staged:
            artifacts.claim(operation.run_id, Artifact.Kind.LOG, staged)
        outbox.append([_event(operation, life.attempt, "destroyed", _facts(life, end, staged), staged)])
    return True


def _told(life: Life, end: End) -> None:
    try:
        destroyed(life, end)
    except (Error, PoolTimeout, BaseError, OSError) as error:
        logger.warning("the end of operation %s's sandbox is told later: %s", life.operation_id, type(error).__name__)


def _staged(log: str) -> Sequence[Staged]:
    return [artifacts.stage(log.encode())] if log else []


def _facts(life: Life, end: End, staged: Sequence[Staged]) -> dict[str, Any]:
    facts: dict[str, Any] = {"status": end.status, "reason": end.reason, "driver": life.driver}
    if end.result is not None:
        facts |= {"exit_code": end.result.exit_code, "seconds": round(end.result.seconds, 3)}
    if staged:
        facts["log_ref"] = staged[0].ref
    return facts


def _event(
    operation: Operation, attempt: int, what: str, data: dict[str, Any], evidence: Sequence[Staged] = ()
) -> NewEvent:
    """Its cause is the dispatch of the attempt; the end is caused by the beginning."""
    started = journal.started_id(operation, attempt)
    created_id = ids.event_id(operation.run_id, operation.id, "sandbox.created", attempt)
    return NewEvent(
        run_id=operation.run_id,
        project=operation.project_id,
        type=f"sandbox.{what}",
        subject=operation.id,
        attempt=attempt,
        operation_id=operation.id,
        parent_event_id=started,
        caused_by=(started if what == "created" else created_id,),
        parent_frame_id=journal.turn_frame(operation.run_id, operation.turn),
        evidence=tuple(one.ref for one in evidence),
        data={"tool": operation.name, "attempt": attempt, **data},
    )


@cache
def place() -> str:
    """This machine, as far as processes can see each other: a container with pids of its own is another place."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text()[:8]
    return f"{socket.gethostname()[:100]}/{boot}/{cgroups.pid_namespace()}"


def worker() -> str:
    return cgroups.worker_identity(os.getpid())

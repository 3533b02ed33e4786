"""Place and release legal holds, and answer the outbox what they keep. The database itself refuses the deletions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

from django.db import connection, transaction
from django.db.models import QuerySet
from django.db.models.functions import Now
from django.dispatch import receiver

from kernel_project.primitives.errors import Conflict, Invalid, NotFound
from kernel_project.primitives.sql import load, rows
from outbox import services as outbox
from outbox.contracts import Actor, NewEvent
from outbox.signals import journal_month_expires, streams_expire
from runs.models import Artifact, Hold, Operation, Project, Run, Tombstone

HERE = Path(__file__).parent.parent
REASON_CHARS_MAX = 2_000
DIGEST = re.compile(r"(?:artifact://sha256/)?([0-9a-f]{64})", re.ASCII)


class AlreadyReleased(Conflict):
    """The hold was released before."""

    code = "hold_released"


def place(*, project: str, scope: str, target: str = "", reason: str, by: Actor) -> Hold:
    """Put a project, a run, an operation or an artifact on hold, from the commit of this call on.

    Waits for deletions of the project that are under way; what they have deleted is gone. A run that was purged can be
    held for what is left of it; a target of which nothing is left is NotFound. The same target may be held several
    times, for several reasons: it stays until all of them are released.
    Raises Invalid for an unknown scope, a target that is none, or no reason.
    """
    reason = _sentence(reason, "why it is held")
    if scope not in Hold.Scope.values:
        raise Invalid(f"a hold is on {', '.join(Hold.Scope.values)}, not on {scope!r}")
    if not Project.objects.filter(slug=project).exists():
        raise NotFound("there is no such project")
    hold = Hold(project=project, scope=scope, reason=reason, placed_by=by.id, **_target(project, scope, target))
    with transaction.atomic():
        # the journal first: a drop of one of its months locks it before it locks projects
        outbox.append([_told(hold, "hold.placed", by, reason)])
        _lock_project(project)
        _target(project, scope, target)  # it may have been deleted while we waited
        hold.save(force_insert=True)
    hold.refresh_from_db()
    return hold


def release(hold_id: UUID, *, project: str, reason: str, by: Actor) -> Hold:
    """End a hold. Raises NotFound for an absent or foreign one, and AlreadyReleased."""
    reason = _sentence(reason, "why it is released")
    with transaction.atomic():
        hold = Hold.objects.select_for_update().filter(id=hold_id, project=project).first()
        if hold is None:
            raise NotFound("there is no such hold")
        if hold.released_at is not None:
            raise AlreadyReleased(f"the hold was released by {hold.released_by}")
        Hold.objects.filter(id=hold.id).update(released_at=Now(), released_by=by.id, release_reason=reason)
        outbox.append([_told(hold, "hold.released", by, reason)])
    hold.refresh_from_db()
    return hold


def in_force(project: str = "") -> QuerySet[Hold]:
    """The holds that are not released, of one project or of all."""
    found = Hold.objects.filter(released_at__isnull=True)
    return found.filter(project=project) if project else found


def on_run(run: Run) -> QuerySet[Hold]:
    """The holds in force that keep this run: its own, those of its operations, and its project's."""
    found = in_force(run.project_id)
    return found.filter(scope=Hold.Scope.PROJECT) | found.filter(run_id=run.id)


def _sentence(reason: str, what: str) -> str:
    reason = reason.strip()
    if not reason or len(reason) > REASON_CHARS_MAX or "\x00" in reason:
        raise Invalid(f"say in at most {REASON_CHARS_MAX} characters {what}")
    return reason


def _target(project: str, scope: str, target: str) -> dict[str, Any]:
    """The columns that name the target. Raises NotFound if the project has no such thing."""
    match scope:
        case Hold.Scope.PROJECT:
            if target not in ("", project):
                raise Invalid("a hold on a project is placed in that project; name no other target")
            return {}
        case Hold.Scope.RUN:
            run_id = _uuid(target)
            known = Run.objects.filter(id=run_id, project_id=project).exclude(state=Run.State.STARTING)
            if not known.exists() and not _buried(project, run_id=run_id, operation_id__isnull=True):
                raise NotFound("there is no such run")
            return {"run_id": run_id}
        case Hold.Scope.OPERATION:
            operation_id = _uuid(target)
            found: Operation | Tombstone | None = (
                Operation.objects.filter(id=operation_id, project_id=project).only("id", "run_id").first()
                or Tombstone.objects.filter(operation_id=operation_id, project=project).first()
            )
            if found is None:
                raise NotFound("there is no such operation; if it was purged, hold its run: that keeps what is left")
            return {"run_id": found.run_id, "operation_id": operation_id}
    named = DIGEST.fullmatch(target)
    if named is None:
        raise Invalid("an artifact is named by its SHA-256: 64 hex digits, or artifact://sha256/…")
    if not Artifact.objects.filter(digest=named[1], run__project_id=project).exists():
        raise NotFound("there is no such artifact")
    return {"digest": named[1]}


def _buried(project: str, **which: Any) -> bool:
    """Of a purged run events, approvals, keys and its tombstone may be left, and can be held."""
    return Tombstone.objects.filter(project=project, **which).exists()


def _uuid(target: str) -> UUID:
    try:
        return UUID(target)
    except ValueError:
        raise Invalid("the target of this hold is named by its id, a UUID") from None


def _lock_project(project: str) -> None:
    if not Project.objects.select_for_update(no_key=True).filter(slug=project).exists():
        raise NotFound("there is no such project")


def _told(hold: Hold, what: str, by: Actor, reason: str) -> NewEvent:
    """An event in a stream of the hold's own: what it holds may have ended long ago, and a project has no stream."""
    data: dict[str, Any] = {"hold_id": str(hold.id), "scope": hold.scope, "target": hold.target, "reason": reason}
    return NewEvent(run_id=hold.id, project=hold.project, type=what, subject=hold.id, actor=by, data=data)


@receiver(journal_month_expires, dispatch_uid="holds keep months")
def keeps_month(*, first: UUID, beyond: UUID, **_: Any) -> str:
    """Why this month of the journal must stay, or "". Inside the drop's transaction no hold comes in between.

    Nor does a resume: its claim looks for the run's journal, and waits for the drop or makes it wait.
    """
    span = {"first": first, "beyond": beyond}
    if connection.in_atomic_block:
        rows(HERE, "lock_projects_of_month", span)
    if found := rows(HERE, "hold_on_month", span):
        return f"it is on legal hold {found[0][0]}"
    [[run_id]] = rows(HERE, "goes_on_in_month", span)
    return f"run {run_id} may tell more" if run_id else ""


@receiver(streams_expire, dispatch_uid="holds keep streams")
def keeps_streams(*, run_ids: Sequence[UUID], **_: Any) -> set[UUID]:
    """Which streams must outlive their month of the journal: of runs that are still there, and of what is held.

    A stream without its events is the tombstone of a run's numbering: whatever is told later goes on behind it.
    """
    with connection.cursor() as cursor:
        cursor.execute(load(HERE, "kept_streams"), {"run_ids": list(run_ids)})
        return {run_id for (run_id,) in cursor.fetchall()}

"""Start the run that undoes an effect, on a named person's demand. What it does stands in `boundary.compensation`."""

from __future__ import annotations

from uuid import UUID

from django.db import transaction

from kernel_project.primitives.errors import Invalid
from outbox.contracts import Actor
from runs.boundary import artifacts, compensation
from runs.boundary.compensation import Compensated, Undoing
from runs.loop import starts
from runs.models import Artifact, Operation, Run

NOTE_BYTES_MAX = 2_000


def compensate(operation_id: UUID, *, project: str, by: Actor, note: str) -> Run:
    """Undo the effect of one operation with the call that its tool declares; returns the run that makes that call.

    The call is judged by policy like any other, may wait for an approval, and can be cancelled with its run. Raises
    NotFound, Conflict and Invalid as `compensation.plan` does, Invalid for a note that is missing or too long,
    Compensated while another compensation stands, and temporal.Down or temporal.Unclear when Temporal did not confirm:
    the same request may then be made again.
    """
    _check(note)
    undoing = compensation.plan(operation_id, project)
    run, fresh = _write(undoing, by, note)
    try:
        return starts.acknowledged(run, fresh).run
    except starts.KeyInProgress:
        raise Compensated("the run that undoes it is being started; look again in a few seconds") from None


def _check(note: str) -> None:
    if not note.strip():
        raise Invalid("a note must say why it is to be undone")
    if "\x00" in note or any("\ud800" <= letter <= "\udfff" for letter in note):
        raise Invalid("the note holds NUL or half a character")
    if len(note.encode()) > NOTE_BYTES_MAX:
        raise Invalid(f"the note must be at most {NOTE_BYTES_MAX} bytes")


def _write(undoing: Undoing, by: Actor, note: str) -> tuple[Run, bool]:
    """The run's row, or the one that an unconfirmed start of the same compensation left; and whether it is new."""
    original = undoing.original
    version = compensation.agent_version(original.project_id)
    described = compensation.described(undoing, note)
    with transaction.atomic():
        Operation.objects.select_for_update(no_key=True).get(id=original.id)  # two people at once: one is first
        known = compensation.standing(original.id)
        if known is not None and known.state == Run.State.STARTING:
            return known, False
        if known is not None:
            raise Compensated(f"run {known.id} undoes it already and is {known.state}", run=str(known.id))
        run = Run.objects.create(
            project_id=original.project_id,
            agent_version=version,
            input_digest=described.digest,
            started_by=by.id,
            workspace=original.run.workspace or str(original.run_id),  # what it undoes was done there
            compensates_id=original.id,
        )
        artifacts.claim(run.id, Artifact.Kind.INPUT, [described])
    return run, True

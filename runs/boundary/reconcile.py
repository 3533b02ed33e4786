"""End what is uncertain: by a probe, by a late result, or by a named person. Never by repeating the call."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from uuid import UUID

from django.db import transaction
from django.db.models import F
from django.db.models.functions import Now

from kernel_project.primitives.errors import Conflict, Invalid, NotFound
from outbox import services as outbox
from outbox.contracts import KERNEL, Actor
from runs import signals
from runs.boundary import artifacts, journal
from runs.boundary.contracts import EffectResult, ProbeAnswer, ProbeVerdict
from runs.boundary.results import Packed, pack
from runs.models import Artifact, News, Operation, Run

NOTE_BYTES_MAX = 2_000  # the wire contract's limit
PROBES_MAX = 10  # then `needs_attention`; a person may still ask for one more
PROBE_DELAY_FIRST_SECONDS = 5.0
PROBE_DELAY_MAX_SECONDS = 3_600.0
TELL_AGAIN_AFTER = timedelta(seconds=2)  # with a tick each 2 s, no news is lost for longer than 5 s
PROBE_BATCH_MAX = 20  # operations that one tick looks for
STATE = Operation.State
VERDICT = Operation.Verdict


@transaction.atomic
def resolve(operation_id: UUID, *, project: str, verdict: str, by: Actor, note: str, result: str = "") -> Operation:
    """Write a person's verdict on an uncertain operation: occurred, none or unknown.

    Raises NotFound for an absent or foreign operation, Conflict if it is not uncertain (any more), Invalid for an
    unknown verdict, a missing note, or one over NOTE_BYTES_MAX. `result` is what the model is told of an effect
    that occurred.
    """
    if verdict not in VERDICT.values:
        raise Invalid(f"the verdict must be one of {', '.join(VERDICT.values)}, not {verdict!r}")
    if not note.strip():
        raise Invalid("a note must say how the verdict was reached")
    if len(note.encode()) > NOTE_BYTES_MAX or "\x00" in note:
        raise Invalid(f"the note must be at most {NOTE_BYTES_MAX} bytes, without NUL")
    operation = Operation.objects.filter(id=operation_id, project_id=project).first()
    if operation is None:
        raise NotFound("there is no such operation")
    packed = pack(EffectResult(text=result)) if result and verdict == VERDICT.OCCURRED else None
    return _reconcile(operation, verdict, by, note, packed)


def by_late_result(operation: Operation, result_digest: str) -> None:
    """The attempt finished after all, inside the caller's transaction: the effect occurred, with this result."""
    note = "the call finished after it was given up"
    _end(operation, VERDICT.OCCURRED, KERNEL, note, result_digest)


def by_probe(operation_id: UUID, attempt: int, answer: ProbeAnswer, absent_counts: bool) -> str:
    """Write what one probe found; returns the operation's state.

    ONE ends it as occurred, a believable ABSENT as none. Otherwise the next probe is planned, or after PROBES_MAX the
    operation needs a person.
    """
    with transaction.atomic():
        operation = Operation.objects.select_for_update().get(id=operation_id)
        if (operation.state, operation.attempt) != (STATE.UNCERTAIN, attempt):
            return operation.state
        number = operation.probe_attempts + 1
        outbox.append([journal.probed(operation, answer.verdict, number)])
        if answer.verdict == ProbeVerdict.ONE:
            packed = pack(answer.result or EffectResult(text=answer.detail or "found by the probe"))
            return _reconcile(operation, VERDICT.OCCURRED, KERNEL, "found by the probe", packed).state
        if answer.verdict == ProbeVerdict.ABSENT and absent_counts:
            return _reconcile(operation, VERDICT.NONE, KERNEL, "the probe did not find it", None).state
        tired = number >= PROBES_MAX
        delay = min(PROBE_DELAY_FIRST_SECONDS * 2**number, PROBE_DELAY_MAX_SECONDS)
        Operation.objects.filter(id=operation.id).update(
            probe_attempts=number,
            needs_attention=tired or F("needs_attention"),
            next_probe_at=None if tired else Now() + timedelta(seconds=delay),
        )
        return operation.state


def _reconcile(operation: Operation, verdict: str, by: Actor, note: str, packed: Packed | None) -> Operation:
    if packed is not None:
        artifacts.claim(operation.run_id, Artifact.Kind.RESULT, packed.bodies)
    if not _end(operation, verdict, by, note, packed.record.digest if packed else ""):
        raise Conflict(
            f"the operation is {operation.state}, not uncertain", code="not_uncertain", state=operation.state
        )
    return operation


def _end(operation: Operation, verdict: str, by: Actor, note: str, result_digest: str) -> bool:
    moved = Operation.objects.filter(id=operation.id, state=STATE.UNCERTAIN, attempt=operation.attempt).update(
        state=STATE.RECONCILED, verdict=verdict, reconciled_by=by.id, reconciled_at=Now(), note=note,
        result_digest=result_digest, next_probe_at=None, needs_attention=False,
    )  # fmt: skip
    operation.refresh_from_db()
    if moved == 1:
        outbox.append([journal.reconciled(operation, by)])
        tell(operation.run_id)
    return moved == 1


def tell(run_id: UUID) -> None:
    """Leave news for the run's workflow, inside the transaction that made it, and wake it after the commit.

    The wake may be lost; the row stays until the workflow has looked, and a sweep tells it again.
    """
    News.objects.create(run_id=run_id, tell_at=Now() + TELL_AGAIN_AFTER)
    transaction.on_commit(lambda: signals.news.send(Run, run_id=run_id))


def probe_due(limit: int = PROBE_BATCH_MAX) -> int:
    """Look for uncertain operations whose next probe is due; returns how many were looked for."""
    from runs.boundary import operations, perform

    due = Operation.objects.filter(state=STATE.UNCERTAIN, next_probe_at__lte=Now()).order_by("next_probe_at")[:limit]
    found = list(due.select_related("run__agent_version", "tool__server"))
    for operation in found:
        given = operations.permission_to_probe(operation)
        answer = asyncio.run(perform.probe_alone(given))
        by_probe(operation.id, operation.attempt, answer, perform.absent_counts(operation))
    return len(found)

"""End what is uncertain: by a probe, by a late result, or by a named person. Never by repeating the call."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

from django.db import connection, transaction
from django.db.models import F
from django.db.models.functions import Now

from kernel_project.primitives.errors import Conflict, Invalid, NotFound
from kernel_project.primitives.sql import load
from outbox import services as outbox
from outbox.contracts import KERNEL, Actor
from runs import signals
from runs.boundary import artifacts, journal, second_person
from runs.boundary.contracts import EffectResult, ProbeAnswer, ProbeVerdict
from runs.boundary.results import Packed, pack
from runs.models import Artifact, News, Operation, Run

logger = logging.getLogger(__name__)

NOTE_BYTES_MAX = 2_000  # the wire contract's limit
EVIDENCE_BYTES_MAX = 1024 * 1024
PROBES_MAX = 10  # then `needs_attention`; a person may still ask for one more
PROBE_DELAY_FIRST_SECONDS = 5.0
PROBE_DELAY_MAX_SECONDS = 3_600.0
TELL_AGAIN_AFTER = timedelta(seconds=2)  # with a tick each 2 s, no news is lost for longer than 5 s
PROBE_BATCH_MAX = 20  # operations that one tick looks for, all at once
PROBE_CLAIM_SECONDS = 90.0  # nobody else looks for a claimed one; longer than a probe may take
STATE = Operation.State
VERDICT = Operation.Verdict


def resolve(
    operation_id: UUID,
    *,
    project: str,
    verdict: str,
    by: Actor,
    note: str,
    result: str = "",
    evidence: bytes = b"",
) -> Operation:
    """Write a person's verdict on an uncertain operation: occurred, none or unknown.

    Raises NotFound for an absent or foreign operation, Conflict if it is not uncertain (any more), Invalid for an
    unknown verdict, a missing note, one over NOTE_BYTES_MAX, or evidence over EVIDENCE_BYTES_MAX, Forbidden for who
    wanted the effect where the second-person rule is in force. `result` is what the
    model is told of an effect that occurred; `evidence` is kept as an artifact that the verdict's event names.
    """
    _check(verdict, note, evidence)
    packed = pack(EffectResult(text=result)) if result and verdict == VERDICT.OCCURRED else None
    proof = artifacts.stage(evidence, "application/octet-stream") if evidence else None
    with transaction.atomic():
        operation = Operation.objects.filter(id=operation_id, project_id=project).first()
        if operation is None:
            raise NotFound("there is no such operation")
        second_person.check(operation, by.id)
        if proof is not None:
            artifacts.claim(operation.run_id, Artifact.Kind.LOG, [proof])
        return _reconcile(operation, verdict, by, note, packed, proof.digest if proof else "")


def _check(verdict: str, note: str, evidence: bytes) -> None:
    if verdict not in VERDICT.values:
        raise Invalid(f"the verdict must be one of {', '.join(VERDICT.values)}, not {verdict!r}")
    if not note.strip():
        raise Invalid("a note must say how the verdict was reached")
    if "\x00" in note or any("\ud800" <= letter <= "\udfff" for letter in note):
        raise Invalid("the note holds NUL or half a character")
    if len(note.encode()) > NOTE_BYTES_MAX:
        raise Invalid(f"the note must be at most {NOTE_BYTES_MAX} bytes")
    if len(evidence) > EVIDENCE_BYTES_MAX:
        raise Invalid(f"the evidence must be at most {EVIDENCE_BYTES_MAX} bytes")


def by_late_result(operation: Operation, attempt: int, effect: str, digest: str) -> None:
    """An attempt that was given up finished after all, inside the caller's transaction that locked the operation.

    It ends an uncertain operation, and corrects a verdict that says less. Where it may mean a second effect, because
    another attempt was made since, a person must look.
    """
    this_effect = operation.attempt == attempt or bool(operation.idempotent_for_seconds)
    if effect == "occurred" and not this_effect:
        Operation.objects.filter(id=operation.id).update(needs_attention=True)
    elif operation.state == STATE.UNCERTAIN and effect == "occurred":
        _end(operation, VERDICT.OCCURRED, KERNEL, "the call finished after it was given up", digest)
    elif effect == "none" and (operation.earlier_unclear or operation.attempt != attempt):
        return  # one attempt does not speak for the others
    elif operation.state == STATE.UNCERTAIN and effect == "none":
        _end(operation, VERDICT.NONE, KERNEL, "the call ended after it was given up, without an effect", digest)
    elif operation.state == STATE.RECONCILED and operation.verdict != VERDICT.OCCURRED and effect == "occurred":
        _correct(operation, digest)


def _correct(operation: Operation, digest: str) -> None:
    """Somebody was sure that it had not happened, or could not find out; now its result is here."""
    said = f"{operation.reconciled_by} had said {operation.verdict}; then the call's own result came"
    Operation.objects.filter(id=operation.id, state=STATE.RECONCILED, attempt=operation.attempt).update(
        verdict=VERDICT.OCCURRED, reconciled_by=KERNEL.id, reconciled_at=Now(), note=said, result_digest=digest
    )
    operation.refresh_from_db()
    outbox.append([journal.reconciled(operation, KERNEL, corrects=True)])
    tell(operation.run_id)


def by_probe(operation_id: UUID, attempt: int, answer: ProbeAnswer, absent_counts: bool) -> str:
    """Write what one probe found; returns the operation's state.

    ONE ends it as occurred, a believable ABSENT as none. Otherwise the next probe is planned; after PROBES_MAX, or when
    the effect is there more than once, the operation needs a person.
    """
    found = answer.result or EffectResult(text=answer.detail or "found by the probe")
    packed = pack(found) if answer.verdict == ProbeVerdict.ONE else None
    with transaction.atomic():
        operation = Operation.objects.select_for_update(no_key=True).get(id=operation_id)
        if (operation.state, operation.attempt) != (STATE.UNCERTAIN, attempt):
            return operation.state
        number = operation.probe_attempts + 1
        outbox.append([journal.probed(operation, answer.verdict, number)])
        if packed is not None:
            return _reconcile(operation, VERDICT.OCCURRED, KERNEL, "found by the probe", packed).state
        if answer.verdict == ProbeVerdict.ABSENT and absent_counts:
            return _reconcile(operation, VERDICT.NONE, KERNEL, "the probe did not find it", None).state
        _look_again(operation, number, many=answer.verdict == ProbeVerdict.MANY)
        return operation.state


def _look_again(operation: Operation, number: int, *, many: bool) -> None:
    tired = number >= PROBES_MAX
    delay = min(PROBE_DELAY_FIRST_SECONDS * 2**number, PROBE_DELAY_MAX_SECONDS)
    Operation.objects.filter(id=operation.id).update(
        probe_attempts=number,
        needs_attention=tired or many or F("needs_attention"),
        next_probe_at=None if tired else Now() + timedelta(seconds=delay),
    )


def _reconcile(
    operation: Operation, verdict: str, by: Actor, note: str, packed: Packed | None, evidence_digest: str = ""
) -> Operation:
    if packed is not None:
        artifacts.claim(operation.run_id, Artifact.Kind.RESULT, packed.bodies)
    if not _end(operation, verdict, by, note, packed.record.digest if packed else "", evidence_digest):
        raise Conflict(
            f"the operation is {operation.state}, not uncertain", code="not_uncertain", state=operation.state
        )
    return operation


def _end(
    operation: Operation, verdict: str, by: Actor, note: str, result_digest: str, evidence_digest: str = ""
) -> bool:
    moved = Operation.objects.filter(id=operation.id, state=STATE.UNCERTAIN, attempt=operation.attempt).update(
        state=STATE.RECONCILED, verdict=verdict, reconciled_by=by.id, reconciled_at=Now(), note=note,
        result_digest=result_digest, evidence_digest=evidence_digest, next_probe_at=None, needs_attention=False,
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
    """Look for uncertain operations whose next probe is due; returns how many were looked for.

    Safe beside itself: a claimed operation is not due for PROBE_CLAIM_SECONDS. One that cannot be looked for does not
    hold up the others.
    """
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(load(artifacts.HERE, "claim_probes"), {"limit": limit, "claim_seconds": PROBE_CLAIM_SECONDS})
        claimed = [(operation_id, attempt) for operation_id, attempt in cursor.fetchall()]
    _probe_all(claimed)
    return len(claimed)


def probe_soon(operation_id: UUID, project: str) -> Operation:
    """Let the next tick look for one uncertain operation, on somebody's demand and also after PROBES_MAX.

    For doors whose process neither has the secrets of tools nor starts their servers. Raises as `probe_now` does.
    """
    operation = _probeable(operation_id, project)
    due = Operation.objects.filter(id=operation.id, state=STATE.UNCERTAIN, attempt=operation.attempt)
    due.update(next_probe_at=Now())
    operation.refresh_from_db()
    return operation


def probe_now(operation_id: UUID, project: str = "") -> str:
    """Look for one uncertain operation at once, in this process; returns the state that it is in then.

    Raises NotFound for an absent or foreign operation, Conflict for one that is not uncertain or cannot be looked for.
    """
    operation = _probeable(operation_id, project)
    _probe_all([(operation.id, operation.attempt)])
    return Operation.objects.values_list("state", flat=True).get(id=operation_id)


def _probeable(operation_id: UUID, project: str) -> Operation:
    found = Operation.objects.filter(id=operation_id)
    operation = (found.filter(project_id=project) if project else found).first()
    if operation is None:
        raise NotFound("there is no such operation")
    if operation.state != STATE.UNCERTAIN:
        raise Conflict(f"the operation is {operation.state}, not uncertain", state=operation.state)
    if not operation.probes:
        raise Conflict("no probe is declared for this tool: only a person can find out", state=operation.state)
    return operation


def _probe_all(claimed: Sequence[tuple[UUID, int]]) -> None:
    from runs.boundary import perform

    if not claimed:
        return
    answers = asyncio.run(perform.probe_alone([operation_id for operation_id, _ in claimed]))
    for (operation_id, attempt), (answer, absent_counts) in zip(claimed, answers, strict=True):
        by_probe(operation_id, attempt, answer, absent_counts)

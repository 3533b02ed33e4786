"""What people and applications say to a run that is under way. The model reads each message once, in order."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from uuid import UUID

from django.db import transaction

from kernel_project.primitives.canonical import sha256_hex
from kernel_project.primitives.clock import now
from kernel_project.primitives.errors import Conflict, Invalid, NotFound
from outbox import services as outbox
from outbox.contracts import Actor
from outbox.models import Event
from runs.boundary import artifacts
from runs.contracts import Limits
from runs.loop.starts import KEY_CHARS_MAX, KeyReused
from runs.loop.turns import limit_event, run_event
from runs.models import Artifact, Run, RunMessage

TEXT_BYTES_MAX = 64 * 1024
MESSAGES_MAX = 1_000  # of one run, for the model reads all of them again in each turn
UNSEEN_MAX = 100  # that wait for the next turn


@dataclass(frozen=True)
class Said:
    """The message, and whether it was there before."""

    message: RunMessage
    replayed: bool


def say(run_id: UUID, project: str, text: str, by: Actor, key: str = "") -> Said:
    """Leave a message for the run's next turn.

    The same key of the same caller with the same text finds the first message, also after the run has ended. Raises
    NotFound for an absent or foreign run, Invalid for a text that is blank or too long, KeyReused, and Conflict for a
    run that has ended or is to stop, has no model, or has too many messages.
    """
    _check(text, key)
    body = artifacts.stage(text.encode())
    with transaction.atomic():
        found = Run.objects.select_for_update(no_key=True, of=("self",)).select_related("agent_version__agent")
        run = found.filter(id=run_id, project_id=project).exclude(state=Run.State.STARTING).first()
        if run is None:
            raise NotFound("there is no such run")
        key_hash = sha256_hex(key.encode()) if key else ""
        if key and (known := RunMessage.objects.filter(run=run, sent_by=by.id, key_hash=key_hash).first()):
            if known.digest != body.digest:
                raise KeyReused("this Idempotency-Key was used before with another body; use a new key")
            return Said(known, replayed=True)
        _check_run(run)
        artifacts.claim(run.id, Artifact.Kind.INPUT, [body])
        message = RunMessage.objects.create(
            run=run, number=run.messages + 1, digest=body.digest, sent_by=by.id, key_hash=key_hash
        )
        Run.objects.filter(id=run.id).update(messages=message.number)
        told = run_event(run, "run.message", {"number": message.number, "message_ref": body.ref})
        outbox.append([replace(told, attempt=message.number, actor=by)])
    message.refresh_from_db()
    return Said(message, replayed=False)


def _check(text: str, key: str) -> None:
    if len(key) > KEY_CHARS_MAX:
        raise Invalid(f"an Idempotency-Key has at most {KEY_CHARS_MAX} characters")
    if not text.strip() or "\x00" in text or len(text.encode("utf-8", "surrogatepass")) > TEXT_BYTES_MAX:
        raise Invalid(f"a message must be text of 1 to {TEXT_BYTES_MAX} bytes, without NUL")


def _check_run(run: Run) -> None:
    if run.state != Run.State.RUNNING:
        raise Conflict(f"the run is {run.state}: it reads no messages any more", code="run_ended", state=run.state)
    if run.compensates_id is not None:
        raise Conflict("the run undoes an effect: no model reads messages there", code="no_model")
    if _is_last_turn(run):
        raise Conflict("the run's last turn has begun, so it reads no messages any more", code="last_turn")
    unseen = RunMessage.objects.filter(run=run, turn__isnull=True).count()
    if run.messages >= MESSAGES_MAX or unseen >= UNSEEN_MAX:
        raise Conflict(
            f"a run takes {MESSAGES_MAX} messages, and {UNSEEN_MAX} between two turns", code="too_many_messages"
        )


def _is_last_turn(run: Run) -> bool:
    """Whether a limit leaves no turn after the one that is under way; the run's row must be locked."""
    limits = Limits.model_validate(run.agent_version.definition["limits"])
    seconds = limits.wall_seconds_max
    if run.turn >= limits.turns_max or (seconds and now() >= run.created_at + timedelta(seconds=seconds)):
        return True
    told = limit_event(run, "").event_id  # with the begin of the last turn; what was told before a resume is over
    return Event.objects.filter(run_id=run.id, event_id=told).exists()

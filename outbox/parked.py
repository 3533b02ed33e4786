"""Events that the event store refused for good: parked, sent again when a person asks, or given up by a person."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

from django.db import connection, transaction
from django.db.models import F
from django.db.models.functions import Now

from kernel_project.primitives.errors import Conflict, Invalid, NotFound
from kernel_project.primitives.sql import load
from outbox import services
from outbox.contracts import Actor, NewEvent
from outbox.destination import RETRY_AFTER_MAX_SECONDS, DestinationFailed, Outgoing, Receipt, Sink, Verdict
from outbox.models import ParkedEvent, Stream
from outbox.place import CLOCK_MARGIN_SECONDS

HERE = Path(__file__).parent
NOTE_CHARS_MAX = 2_000
BY_CHARS_MAX = 200
REPLAYS_PER_LOOK = 50
HELD_FIRST_SECONDS = 5.0  # until a replay that was neither taken nor refused is tried again, doubling
HELD_MAX_SECONDS = 60.0

State = ParkedEvent.State


def park(refused: Iterable[tuple[Outgoing, Receipt]]) -> None:
    """Keep what the store refused for good, for a person to look at; a repeat changes nothing.

    Belongs into the transaction that moves the cursor over it: otherwise a crash between the two would lose it.
    """
    rows = [
        ParkedEvent(
            event_id=event.event_id, run_id=event.run_id, sequence=event.sequence, reason=receipt.reason,
            last_error=receipt.error,
        )
        for event, receipt in refused
    ]  # fmt: skip
    if rows:
        ParkedEvent.objects.bulk_create(rows, ignore_conflicts=True)


@transaction.atomic
def replay(event_id: UUID, *, by: Actor, note: str) -> ParkedEvent:
    """Have a parked event sent again, with the same bytes; the publisher does it within seconds.

    If it is refused again it is parked again. Raises Conflict unless it is parked now, NotFound, Invalid.
    """
    again = {"next_attempt_at": Now(), "held_count": 0}
    parked = _move(event_id, (State.PARKED,), State.QUEUED, by, note, **again)
    services.append([_told(parked, "event.replay_requested", by, note, attempt=parked.attempts)])
    return parked


@transaction.atomic
def give_up(event_id: UUID, *, by: Actor, note: str) -> ParkedEvent:
    """Say for good that the event store will never have this event; the journal keeps it.

    The decision is an event of the same run. Raises Conflict unless it is parked now or waits for its replay, NotFound,
    Invalid.
    """
    parked = _move(event_id, ParkedEvent.OPEN, State.GIVEN_UP, by, note, resolved_at=Now())
    services.append([_told(parked, "event.given_up", by, note)])
    return parked


def send_queued(sink: Sink, until: float) -> int:
    """Send what waits for its replay, what was never held first; returns how many events were taken.

    Raises DestinationFailed; the event that met with it lets the others go first.
    """
    taken = 0
    for event in _queued(sink.name):  # one by one: each has been refused before, and may be again
        try:
            receipt = sink.deliver([event], until).get(event.event_id)
        except DestinationFailed as failure:
            _hold(event, failure.message)
            raise
        taken += _settle_replay(event, receipt)
    return taken


def _queued(destination: str) -> list[Outgoing]:
    parameters: dict[str, Any] = {
        "destination": destination, "events": REPLAYS_PER_LOOK, "held_max_seconds": HELD_MAX_SECONDS,
        "circuit_max_seconds": RETRY_AFTER_MAX_SECONDS, "margin_seconds": CLOCK_MARGIN_SECONDS,
    }  # fmt: skip
    with connection.cursor() as cursor:
        cursor.execute(load(HERE, "queued_replays"), parameters)
        return [Outgoing(*row) for row in cursor.fetchall()]


def _hold(event: Outgoing, error: str) -> None:
    with connection.cursor() as cursor:
        parameters: dict[str, Any] = {
            "event_id": event.event_id, "error": error, "held_first_seconds": HELD_FIRST_SECONDS,
            "held_max_seconds": HELD_MAX_SECONDS,
        }  # fmt: skip
        cursor.execute(load(HERE, "hold_replay"), parameters)


def _settle_replay(event: Outgoing, receipt: Receipt | None) -> bool:
    row = ParkedEvent.objects.filter(event_id=event.event_id, state=State.QUEUED)
    match receipt:
        case None:
            _hold(event, "the answer did not name the event")
        case Receipt(verdict=Verdict.HELD):
            _hold(event, receipt.error or receipt.reason)
        case Receipt(verdict=Verdict.ACKNOWLEDGED):
            return row.update(state=State.REPLAYED, resolved_at=Now()) == 1
        case Receipt(verdict=Verdict.REFUSED):
            row.update(state=State.PARKED, reason=receipt.reason, last_error=receipt.error, attempts=F("attempts") + 1)
    return False


def _move(event_id: UUID, of: Sequence[State], to: State, by: Actor, note: str, **more: Any) -> ParkedEvent:
    _check(by, note)
    row = ParkedEvent.objects.filter(event_id=event_id, state__in=of)
    moved = row.update(state=to, resolved_by=by.id, note=note, **more)
    parked = ParkedEvent.objects.filter(event_id=event_id).first()
    if parked is None:
        raise NotFound("there is no such parked event")
    if not moved:
        allowed = "only a parked one can be replayed, and only a parked or waiting one can be given up"
        raise Conflict(f"the event is {parked.get_state_display()}; {allowed}")
    return parked


def _check(by: Actor, note: str) -> None:
    if not note.strip():
        raise Invalid("say why, in a note")
    if len(note) > NOTE_CHARS_MAX or "\x00" in note:
        raise Invalid(f"the note must be at most {NOTE_CHARS_MAX} characters, without NUL")
    if not by.id.strip() or len(by.id) > BY_CHARS_MAX or "\x00" in by.id:
        raise Invalid(f"say who decides, in at most {BY_CHARS_MAX} characters")


def _told(parked: ParkedEvent, kind: str, by: Actor, note: str, attempt: int = 1) -> NewEvent:
    """What a person decided, as an event of the run. It names the refused event in its data only: the event store does
    not have it, and would wait for it as a parent.
    """
    project = Stream.objects.values_list("project", flat=True).get(run_id=parked.run_id)
    data = {
        "refused_event_id": str(parked.event_id), "refused_sequence": parked.sequence, "reason": parked.reason,
        "status": parked.state, "note": note,
    }  # fmt: skip
    return NewEvent(
        run_id=parked.run_id, project=project, type=kind, subject=parked.event_id, data=data, attempt=attempt, actor=by
    )

"""Events that the event store refused for good: parked, sent again when a person asks, or given up by a person."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from uuid import UUID

from django.db import connection, transaction
from django.db.models import F
from django.db.models.functions import Now

from kernel_project.primitives.errors import Conflict, Invalid, NotFound
from kernel_project.primitives.sql import load
from outbox import services
from outbox.contracts import Actor, NewEvent
from outbox.destination import Outgoing, Receipt, Sink, Verdict
from outbox.models import ParkedEvent, Stream

HERE = Path(__file__).parent
NOTE_CHARS_MAX = 2_000
BY_CHARS_MAX = 200
REPLAYS_PER_LOOK = 50

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
    parked = _move(event_id, State.QUEUED, by, note)
    services.append([_told(parked, "event.replay_requested", by, note, attempt=parked.attempts)])
    return parked


@transaction.atomic
def give_up(event_id: UUID, *, by: Actor, note: str) -> ParkedEvent:
    """Say for good that the event store will never have this event; the journal keeps it.

    The decision is an event of the same run. Raises Conflict unless it is parked now, NotFound, Invalid.
    """
    parked = _move(event_id, State.GIVEN_UP, by, note)
    services.append([_told(parked, "event.given_up", by, note)])
    return parked


def send_queued(sink: Sink, until: float) -> int:
    """Send what waits for its replay; returns how many events were taken. Raises DestinationFailed."""
    with connection.cursor() as cursor:
        cursor.execute(load(HERE, "queued_replays"), {"destination": sink.name, "events": REPLAYS_PER_LOOK})
        events = [Outgoing(*row) for row in cursor.fetchall()]
    taken = 0
    for event in events:  # one by one: each has been refused before, and may be again
        receipt = sink.deliver([event], until).get(event.event_id)
        taken += _settle_replay(event, receipt)
    return taken


def _settle_replay(event: Outgoing, receipt: Receipt | None) -> bool:
    row = ParkedEvent.objects.filter(event_id=event.event_id, state=State.QUEUED)
    match receipt:
        case Receipt(verdict=Verdict.ACKNOWLEDGED):
            return row.update(state=State.REPLAYED, resolved_at=Now()) == 1
        case Receipt(verdict=Verdict.REFUSED):
            row.update(state=State.PARKED, reason=receipt.reason, last_error=receipt.error, attempts=F("attempts") + 1)
    return False  # held or unsent: it waits on


def _move(event_id: UUID, to: State, by: Actor, note: str) -> ParkedEvent:
    _check(by, note)
    resolved = {"resolved_at": Now()} if to == State.GIVEN_UP else {}
    row = ParkedEvent.objects.filter(event_id=event_id, state=State.PARKED)
    moved = row.update(state=to, resolved_by=by.id, note=note, **resolved)
    parked = ParkedEvent.objects.filter(event_id=event_id).first()
    if parked is None:
        raise NotFound("there is no such parked event")
    if not moved:
        raise Conflict(f"the event is {parked.get_state_display()}; only a parked one can be replayed or given up")
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

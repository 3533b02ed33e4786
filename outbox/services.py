"""Write events into the journal, inside the transaction of whatever they tell. Sends nothing."""

from __future__ import annotations

import json
import secrets
from collections import Counter
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.db import connection
from django.db.transaction import TransactionManagementError

from kernel_project.primitives.canonical import canonical_json
from kernel_project.primitives.clock import wire_time
from outbox.contracts import NewEvent
from outbox.source import source_id
from temporality.contracts import SCHEMA

INTEGRATION = "agent-kernel"
EVENTS_PER_APPEND_MAX = 1_000
ENVELOPE_BYTES_MAX = 256 * 1024  # a quarter of a batch body; anything larger belongs into an artifact
# Stands for the sequence, which only the database knows, until it puts the number in. Random, so that no
# hostile text can contain it.
SEQUENCE_MARK = secrets.token_hex(16)


class EventMismatch(AssertionError):
    """The same event id came with another content: a bug in the caller."""


def append(events: Sequence[NewEvent]) -> dict[UUID, int]:
    """Write events and return the sequence of each by event id.

    Must run inside the caller's transaction, as late in it as possible: it holds the streams' row locks until commit.
    An event whose id is already in the journal is not written again and keeps its sequence; raises EventMismatch when
    its content differs in more than the time and the source's epoch.
    """
    if not connection.in_atomic_block:
        raise TransactionManagementError("outbox.append must join the transaction of what the events tell")
    if not events:
        return {}
    assert len(events) <= EVENTS_PER_APPEND_MAX, f"{len(events)} events in one append"
    envelopes = {event.event_id: envelope(event) for event in events}
    with connection.cursor() as cursor:
        cursor.execute("SELECT event_id, sequence, stored FROM outbox_append(%s)", [_given(events, envelopes)])
        rows = cursor.fetchall()
    for event_id, _, stored in rows:
        if stored is not None:
            _check_same(stored, envelopes[event_id])
    return {event_id: sequence for event_id, sequence, _ in rows}


def envelope(event: NewEvent) -> str:
    """The canonical text of an event, with SEQUENCE_MARK where its number will stand."""
    data: dict[str, Any] = {
        **event.data,
        "frame_id": event.frame_id or str(event.operation_id or event.run_id),
        "sequence": SEQUENCE_MARK,
        "caused_by": [str(cause) for cause in event.caused_by],
    }
    if event.parent_frame_id:
        data["parent_frame_id"] = event.parent_frame_id
    if event.operation_id:
        data["operation_id"] = str(event.operation_id)
    context: dict[str, Any] = {
        "project": event.project,
        "run": str(event.run_id),
        "actor": {"id": event.actor.id, "type": event.actor.type},
    }
    if event.parent_event_id:
        context["parent_event_id"] = str(event.parent_event_id)
    whole: dict[str, Any] = {
        "schema": SCHEMA,
        "event_id": str(event.event_id),
        "occurred_at": wire_time(event.occurred_at),
        "source": {"id": source_id(), "integration": INTEGRATION},
        "context": context,
        "type": event.type,
        "data": data,
    }
    if event.evidence:
        whole["evidence"] = [{"ref": ref} for ref in event.evidence]
    text = canonical_json(whole)
    assert len(text) <= ENVELOPE_BYTES_MAX, f"a {event.type} event of {len(text)} bytes: use a reference"
    return text


def _given(events: Sequence[NewEvent], envelopes: dict[UUID, str]) -> str:
    """The events as the database's function takes them: ordered by run, so that streams are locked in one order."""
    totals = Counter(event.run_id for event in events)
    given = []
    for event in sorted(events, key=lambda event: event.run_id):
        before, after = envelopes[event.event_id].split(f'"{SEQUENCE_MARK}"')
        given.append({
            "run_id": str(event.run_id),
            "project": event.project,
            "total": totals[event.run_id],
            "event_id": str(event.event_id),
            "type": event.type,
            "occurred_at": event.occurred_at.isoformat(),
            "operation_id": str(event.operation_id) if event.operation_id else None,
            "caused_by": [str(cause) for cause in event.caused_by],
            "before": before,
            "after": after,
        })  # fmt: skip
    return json.dumps(given)


def _check_same(stored: str, given: str) -> None:
    one, other = json.loads(stored), json.loads(given)
    for side in (one, other):
        side.pop("occurred_at")
        side.pop("source")  # its epoch may have been raised meanwhile
        side["data"].pop("sequence")
    if one != other:
        raise EventMismatch(f"event {one['event_id']} ({one['type']}) was written before with another content")

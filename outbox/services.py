"""Write events into the journal, inside the transaction of whatever they tell. Sends nothing."""

from __future__ import annotations

import json
import re
import secrets
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

from django.db import connection
from django.db.transaction import TransactionManagementError

from kernel_project.primitives.canonical import canonical_json
from kernel_project.primitives.clock import wire_time
from kernel_project.primitives.errors import Invalid
from kernel_project.primitives.sql import rows
from outbox.contracts import NewEvent
from outbox.source import source_id
from temporality.contracts import SCHEMA

HERE = Path(__file__).parent
INTEGRATION = "agent-kernel"
EVENTS_PER_APPEND_MAX = 1_000
ENVELOPE_BYTES_MAX = 256 * 1024  # a quarter of a batch body; anything larger belongs into an artifact
NUL_IN_JSON = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")  # after an even number of backslashes it is an escape
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
    told = rows(HERE, "append", {"events": given(events)})
    verify(events, [stored for _, _, stored in told])
    return {event_id: sequence for event_id, sequence, _ in told}


def given(events: Sequence[NewEvent]) -> str:
    """Events as the database's function `outbox_append` takes them, for a statement that calls it beside its own work.

    The function answers with a row per event, whose `stored` belongs before `verify`. Events are ordered by run, so
    that streams are locked in one order.
    """
    assert len(events) <= EVENTS_PER_APPEND_MAX, f"{len(events)} events in one append"
    totals = Counter(event.run_id for event in events)
    return json.dumps([_given(event, totals[event.run_id]) for event in sorted(events, key=lambda e: e.run_id)])


def verify(events: Sequence[NewEvent], stored: Iterable[str | None]) -> None:
    """Raises EventMismatch if an event that was in the journal before has another content there."""
    by_id = {str(event.event_id): event for event in events}
    for text in filter(None, stored):
        _check_same(text, envelope(by_id[json.loads(text)["event_id"]]))


def envelope(event: NewEvent) -> str:
    """The canonical text of an event, with SEQUENCE_MARK where its number will stand; Invalid if it is too large."""
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
    text = _without_nul(canonical_json(whole))
    if (size := len(text.encode())) > ENVELOPE_BYTES_MAX:
        told = f"a {event.type} event of {size} bytes is larger than {ENVELOPE_BYTES_MAX}"
        raise Invalid(f"{told}: put the content into an artifact")
    return text


def _without_nul(text: str) -> str:
    """JSON text whose NULs are written out. PostgreSQL's jsonb refuses them, and with them what the event settles."""
    return NUL_IN_JSON.sub(r"\1\\\\u0000", text) if "\\u0000" in text else text


def _given(event: NewEvent, total: int) -> dict[str, Any]:
    before, after = envelope(event).split(f'"{SEQUENCE_MARK}"')
    return {
        "run_id": str(event.run_id),
        "project": event.project,
        "total": total,
        "event_id": str(event.event_id),
        "type": event.type,
        "occurred_at": event.occurred_at.isoformat(),
        "operation_id": str(event.operation_id) if event.operation_id else None,
        "caused_by": [str(cause) for cause in event.caused_by],
        "before": before,
        "after": after,
    }


def _check_same(stored: str, given: str) -> None:
    one, other = json.loads(stored), json.loads(given)
    for side in (one, other):
        side.pop("occurred_at")
        side.pop("source")  # its epoch may have been raised meanwhile
        side["data"].pop("sequence")
    if one != other:
        raise EventMismatch(f"event {one['event_id']} ({one['type']}) was written before with another content")

"""Where every id of the kernel comes from. Ids that must survive a retry are computed, never drawn."""

from __future__ import annotations

from uuid import UUID, uuid5

import uuid_utils.compat

WORKFLOW_PREFIX = "run-"


def new_id() -> UUID:
    """A new UUIDv7: ordered by time, so that primary keys stay cheap and the journal can be cut by age."""
    made: UUID = uuid_utils.compat.uuid7()
    return made


def operation_id(run_id: UUID, turn: int, position: int) -> UUID:
    """The identity of one intended effect: its place in the run, never the provider's tool call id.

    Position 0 of a turn is the model call, 1..n are the tool calls in the order of the answer.
    """
    return uuid5(run_id, f"{turn}/{position}")


def event_id(run_id: UUID, subject: UUID | str, event_type: str, attempt: int = 1) -> UUID:
    """The id of an event: the same happening has the same id, however often it is written or sent."""
    return uuid5(run_id, f"{subject}/{event_type}/{attempt}")


def workflow_id(run_id: UUID) -> str:
    """The Temporal workflow id of a run; the same for ever, through resume and Continue-As-New."""
    return f"{WORKFLOW_PREFIX}{run_id}"

"""What the other apps hand to the outbox. Imports no framework."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any, Literal
from uuid import UUID

from kernel_project.primitives import ids
from kernel_project.primitives.clock import now

ActorType = Literal["agent", "human", "system", "service"]


@dataclass(frozen=True)
class Actor:
    """Who made it happen."""

    id: str
    type: ActorType


KERNEL = Actor(id="agent-kernel", type="system")


@dataclass(frozen=True)
class NewEvent:
    """One happening of a run, not yet numbered.

    `subject` and `attempt` with the type make the event's id, so that the same happening told twice is one event.
    `data` holds references, hashes and small verdicts only: no prompt, no arguments, no result. `frame_id` is the run,
    turn or operation that the event belongs to. `parent_event_id` goes into the envelope, `caused_by` into the data.
    """

    run_id: UUID
    project: str
    type: str
    subject: UUID | str
    data: Mapping[str, Any] = field(default_factory=dict)
    attempt: int = 1
    operation_id: UUID | None = None
    caused_by: tuple[UUID, ...] = ()
    parent_event_id: UUID | None = None
    frame_id: str = ""
    parent_frame_id: str = ""
    actor: Actor = KERNEL
    evidence: tuple[str, ...] = ()
    occurred_at: datetime = field(default_factory=now)

    @cached_property
    def event_id(self) -> UUID:
        return ids.event_id(self.run_id, self.subject, self.type, self.attempt)

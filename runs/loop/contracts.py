"""What the workflow and its activities hand each other: ids, counts and small verdicts, never a prompt or a result.

These texts stand in Temporal's histories and outlive a deploy: unknown fields are ignored, new ones have defaults.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import BaseModel, BeforeValidator, ConfigDict

from runs.contracts import Limits, OnUncertain

WORKFLOW = "AgentRun"
UNHEARD = "unheard"  # what `finish` answers when the model must read a message before the run can end
Outcome = Literal["completed", "failed", "cancelled"]


class Message(BaseModel):
    model_config = ConfigDict(frozen=True)


def _known(limits: Any) -> Any:
    """Without limits that a later version of the kernel added: an agent's file is strict, a history is not."""
    return (
        {name: limits[name] for name in limits if name in Limits.model_fields} if isinstance(limits, dict) else limits
    )


class Plan(Message):
    """What stays the same for the whole run. `ends_at` is when its time is over, waiting included."""

    run_id: UUID
    limits: Annotated[Limits, BeforeValidator(_known)] = Limits()
    ends_at: datetime | None = None
    on_uncertain: OnUncertain = "wait"
    model_timeout_seconds: int = 120
    model_queue: str = ""  # where calls of models are taken; empty: where the runs are


class LoopState(Message):
    """All that the loop remembers; carried through Continue-As-New."""

    turn: int = 0
    model_attempt: int = 1  # of this turn, counting the first
    turns_lost: int = 0  # turns in a row that gave nothing to go on with
    tool_calls: int = 0
    failures: dict[str, int] = {}  # by fingerprint: turns in which that call failed that way
    limit: str = ""  # the limit that was hit; only one last call without tools is left
    answered: bool = False  # it has come to its end, and goes on for a message only


class Ticket(Message):
    """One call of a turn and what may be done with it now."""

    operation_id: UUID
    state: str
    ready: bool = False  # perform it
    deadline_at: datetime | None = None  # of the approval that it waits for
    timeout_seconds: float = 60.0
    fingerprint: str = ""  # same call, same failure
    verdict: str = ""
    local: bool = False  # quick and in this process: no round trip to Temporal is worth it
    queue: str = ""  # where it is taken; empty: where the runs are
    delegated: bool = False  # done by a run of another agent; once dispatched it is ready again when that has ended


class RunInput(Message):
    """What an execution starts with; `tickets` are the calls of a turn that the last execution left.

    `resumption` counts how often the run has failed and goes on.
    """

    version: int = 1
    plan: Plan
    state: LoopState = LoopState()
    tickets: tuple[Ticket, ...] = ()
    resumption: int = 0


class ThinkInput(Message):
    """Ask the model for one turn. `attempt` makes the repeat of a failed call different from its redelivery."""

    run_id: UUID
    turn: int
    attempt: int
    tools: bool
    calls_allowed: int
    limit: str = ""
    woken: bool = False  # there was news since the last look
    resumption: int | None = None  # of the asking execution; one of an older worker does not say


class Thought(Message):
    """What came of a turn. `answer` ends the run, cut and empty gave nothing, stopped: the run is to be cancelled.

    `not_undone` ends a run that was to undo an effect and did not; `code` says why. `limit` asked nothing, for the call
    does not fit into the limit that `code` names; `begun` says whether the turn was taken before.
    """

    kind: Literal["answer", "calls", "cut", "empty", "refused", "failed", "stopped", "not_undone", "limit"]
    tickets: tuple[Ticket, ...] = ()
    code: str = ""
    retryable: bool = False
    retry_after_seconds: float | None = None
    begun: bool = False


class PerformInput(Message):
    run_id: UUID
    operation_id: UUID


class DelegateInput(Message):
    """Let another agent do a task, or take up how it ended. `over`: the run's time is, so nothing is begun."""

    run_id: UUID
    operation_id: UUID
    over: bool = False


class LookInput(Message):
    """Ask where these calls stand. `close`: the run's time is over, so withdraw every call that has not left."""

    run_id: UUID
    operation_ids: tuple[UUID, ...]
    close: bool = False
    resumption: int | None = None


class Seen(Message):
    """What the database says now."""

    tickets: tuple[Ticket, ...]
    cancel_requested: bool = False


class FinishInput(Message):
    """The end of a run. One that comes late, after the run was resumed, is not the end any more."""

    run_id: UUID
    resumption: int = 0
    outcome: Outcome
    code: str = ""
    message: str = ""
    unheard: bool = False  # no turn is left for messages that came late: they stay unread

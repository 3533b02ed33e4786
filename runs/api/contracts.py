"""Bodies of the JSON API's requests and answers about runs. Requests are strict; times are UTC with their offset."""

from __future__ import annotations

from typing import Any, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from kernel_project.web.fields import INTEGER_MAX, QueryInteger, QueryTime, Text, WireTime
from kernel_project.web.pages import PageQuery

RunState = Literal["running", "cancelling", "completed", "failed", "cancelled"]
OperationState = Literal[
    "proposed", "denied", "awaiting_approval", "rejected", "expired", "withdrawn", "blocked",
    "dispatched", "succeeded", "tool_error", "failed", "uncertain", "reconciled",
]  # fmt: skip
KindName = Literal["model", "mcp", "http", "python", "sandbox", "agent"]
NAME_CHARS_MAX = 100
INPUT_CHARS_MAX = 512 * 1024  # in bytes it is the same limit, see loop.starts
VERSION_MAX = 2**31 - 1
REASON_CHARS_MAX = 1_000
NOTE_CHARS_MAX = 2_000
MESSAGE_CHARS_MAX = 64 * 1024  # in bytes it is the same limit, see loop.messages
RESULT_CHARS_MAX = 64 * 1024
EVIDENCE_CHARS_MAX = 64 * 1024
EVENTS_DEFAULT = 50
EVENTS_MAX = 200


class Request(BaseModel):
    """A body: nothing that it does not know, nothing of another type."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Answer(BaseModel):
    model_config = ConfigDict(frozen=True)


class StartRun(Request):
    """Start a run of an agent. Without `version` the newest one is taken."""

    agent: Text = Field(min_length=1, max_length=NAME_CHARS_MAX, examples=["reporter"])
    input: Text = Field(max_length=INPUT_CHARS_MAX, examples=["Summarise what changed this week."])
    version: int | None = Field(default=None, ge=1, le=VERSION_MAX)
    workspace: str = Field(
        default="",
        max_length=NAME_CHARS_MAX,
        pattern=r"^([a-z0-9][a-z0-9-]*)?$",
        description="Name of a prepared folder; empty: the run gets its own.",
    )


class CancelRun(Request):
    """Ask a run to stop."""

    reason: Text = Field(default="", max_length=REASON_CHARS_MAX)


class SayToRun(Request):
    """Something that the model is to read in its next turn."""

    text: Text = Field(min_length=1, max_length=MESSAGE_CHARS_MAX, examples=["Leave out the drafts."])


class Reconcile(Request):
    """A person's verdict on an uncertain operation, and how it was reached."""

    verdict: Literal["occurred", "none", "unknown"]
    note: str = Field(
        min_length=1,
        max_length=NOTE_CHARS_MAX,
        pattern=r"^[^\x00]*[^\s\x00][^\x00]*$",
        examples=["Order 17 is in the shop's list."],
    )
    result: Text = Field(
        default="", max_length=RESULT_CHARS_MAX, description="What the model is told, if the effect occurred."
    )
    evidence: Text = Field(
        default="", max_length=EVIDENCE_CHARS_MAX, description="What shows it: a log, an answer, an address. Kept."
    )


class Compensate(Request):
    """Undo the effect of an operation, and why."""

    note: str = Field(
        min_length=1,
        max_length=NOTE_CHARS_MAX,
        pattern=r"^[^\x00]*[^\s\x00][^\x00]*$",
        examples=["It was the wrong customer."],
    )


class RunQuery(PageQuery):
    state: RunState | None = None
    agent: Text | None = Field(default=None, max_length=NAME_CHARS_MAX)
    started_after: QueryTime | None = Field(default=None, description="Started then or later.")
    started_before: QueryTime | None = Field(default=None, description="Started before then.")


class OperationQuery(PageQuery):
    state: OperationState | None = None
    kind: KindName | None = None


class EventQuery(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    after: QueryInteger = Field(default=0, ge=0, le=INTEGER_MAX, description="The last sequence already seen.")
    limit: QueryInteger = Field(default=EVENTS_DEFAULT, ge=1, le=EVENTS_MAX)
    tokens: Literal["true"] | None = Field(
        default=None, description="In a stream: also what the model says while it says it. Needs `artifacts:read`."
    )


class RunStarted(Answer):
    """A run as it was when Temporal had acknowledged it: the same however often the request is repeated."""

    id: UUID
    project: str
    agent: str
    agent_version: int
    state: Literal["running"] = Field(description="As of the start; read the run for its state now.")
    workspace: str
    input_ref: str
    started_by: str
    created_at: WireTime
    started_at: WireTime


class RunItem(Answer):
    """A run."""

    id: UUID
    project: str
    agent: str
    agent_version: int
    model: str
    state: RunState
    waiting_for: str = Field(description="Why it does not move; empty if it does.")
    turn: int
    failure_code: str
    failure_message: str
    input_ref: str
    result_ref: str | None
    workspace: str
    started_by: str
    created_at: WireTime
    started_at: WireTime | None
    ended_at: WireTime | None
    cancel_requested_at: WireTime | None
    cancel_requested_by: str
    cancel_reason: str
    resumes: int = Field(description="How often it went on after it had failed.")
    parent_id: UUID | None = Field(description="The run that let this one do a task.")
    parent_operation_id: UUID | None = Field(description="The call of that run's model.")
    depth: int = Field(description="How many runs are above it.")
    build_id: str = Field(description="Build of the worker that took its last turn; empty where none was set.")


class RunDetail(RunItem):
    """A run with what it has come to."""

    result: str | None = Field(description="The last answer's text; null while there is none.")
    result_cut: bool = Field(description="The middle of `result` was left out; `result_ref` has it all.")
    tokens_charged: int = Field(description="Used by its model calls and its children, or reserved where nobody knows.")
    cost_charged: str = Field(description="What they cost by the project's prices; 0 where it has none.")


class MessageSaid(Answer):
    """A message as it was taken: the same however often the request is repeated."""

    run_id: UUID
    number: int = Field(description="1, 2, … in the run: the order in which the model reads them.")
    message_ref: str
    sent_by: str
    created_at: WireTime


class MessageItem(MessageSaid):
    """A message, and which turn of the model read it first."""

    turn: int | None = Field(description="Null: not read yet.")


class EventItem(Answer):
    """One event of a run."""

    sequence: int
    event_id: UUID
    type: str
    occurred_at: WireTime
    recorded_at: WireTime
    operation_id: UUID | None
    delivered: bool = Field(description="The event store has acknowledged it.")
    parked: bool = Field(description="The event store refused it for good; a person has to look.")
    envelope: dict[str, Any] | None = Field(description="The event as it is sent; null if it cannot be read.")


class EventPage(Answer):
    """Events of a run in order. `gaps` are sequences that should be there and are not, as pairs of first and last."""

    items: list[EventItem]
    next_after: int | None = Field(description="Give it as `after`; null when this was all so far.")
    head: int = Field(description="Sequence of the run's last event.")
    published: int = Field(description="Last sequence that the event store has acknowledged, or refused for good.")
    gaps: list[tuple[int, int]]


class OperationItem(Answer):
    """One intended effect: its state, hashes and references, never its arguments."""

    id: UUID
    run_id: UUID
    turn: int
    position: int = Field(description="0 is the model call of the turn.")
    kind: KindName
    name: str
    effect: Literal["read", "write"]
    state: OperationState
    attempt: int
    actor: str
    policy: str
    policy_answer: str
    definition_digest: str
    arguments_hash: str
    arguments_ref: str
    result_ref: str | None
    result_invalid: str
    error_class: str
    error_message: str
    usage: dict[str, Any]
    verdict: str
    reconciled_by: str
    reconciled_at: WireTime | None
    note: str
    needs_attention: bool
    probes: bool = Field(description="The effect can be looked for.")
    probe_attempts: int
    next_probe_at: WireTime | None
    evidence_ref: str | None = Field(description="What shows the verdict.")
    twin_id: UUID | None = Field(description="An earlier operation that was made for the same thing.")
    compensates_id: UUID | None = Field(description="The operation whose effect this one is to undo.")
    proposed_at: WireTime
    first_dispatched_at: WireTime | None
    dispatched_at: WireTime | None
    deadline_at: WireTime | None
    settled_at: WireTime | None


class ApprovalOfOperation(Answer):
    """One request for a person's decision on a call. A yes is voided when the call changed after it."""

    id: UUID
    state: str
    requested_at: WireTime
    decided_at: WireTime | None
    decided_by: str


class CompensationItem(Answer):
    """The run that undoes an effect, and where its one call stands; that is null until the run has begun."""

    compensates_id: UUID
    run_id: UUID
    run_state: str
    operation_id: UUID | None
    operation_state: str | None
    requested_by: str
    created_at: WireTime


class OperationDetail(OperationItem):
    """An operation with its bodies for callers who may read artifacts; null for others, and if too large."""

    approvals: list[ApprovalOfOperation] = Field(description="All requests about this call, the newest first.")
    compensations: list[CompensationItem] = Field(description="What was begun to undo it, the newest first.")
    arguments: Any = None
    result: Any = None


class AgentItem(Answer):
    """The newest version of an agent."""

    name: str
    version: int
    digest: str
    model: str
    tools: list[str]
    delegates: list[str] = Field(description="The agents that it may let do a task.")
    on_uncertain: str
    created_at: WireTime
    created_by: str


class ToolItem(Answer):
    """A registered tool and what it declares."""

    name: str
    exposed_name: str
    kind: KindName
    description: str
    effect: Literal["read", "write"]
    idempotent_for_seconds: int | None
    probes: bool
    replay_safe: bool
    timeout_seconds: int
    definition_digest: str
    input_schema: Any
    enabled: bool

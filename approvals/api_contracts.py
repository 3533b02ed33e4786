"""Bodies of the JSON API's requests and answers about approvals."""

from __future__ import annotations

from typing import Any, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from kernel_project.web.fields import Text, WireTime
from kernel_project.web.pages import PageQuery

ApprovalState = Literal[
    "waiting", "granted", "rejected", "expired", "withdrawn", "voided", "superseded", "escalated"
]  # fmt: skip
REASON_CHARS_MAX = 16_000  # four bytes each at most, so the service takes all of it


class ApprovalQuery(PageQuery):
    state: ApprovalState | None = None
    run_id: UUID | None = None
    mine: Literal["true"] | None = Field(
        default=None, description="Only what waits and the caller may say yes to now: groups, four eyes and deadline."
    )


class Decide(BaseModel):
    """A yes or no. Who says it is the session's or the key's person, never this body's."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    verdict: Literal["approve", "reject"]
    reason: Text = Field(default="", max_length=REASON_CHARS_MAX, examples=["The amount is what we agreed on."])
    break_glass: bool = Field(
        default=False,
        description="Approve alone in an emergency, past group and quorum, where the policy provides for it. Needs the "
        "scope approvals:break_glass and a reason.",
    )


class Edit(BaseModel):
    """Other arguments for the call. What is asked then is a new request; this one is superseded."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    arguments: dict[str, Any] = Field(
        description="All of them, as the call is to be made; they must fit the tool's schema.",
        examples=[{"amount": 90}],
    )
    reason: Text = Field(default="", max_length=REASON_CHARS_MAX)


class DecisionItem(BaseModel):
    """One try to decide, applied or not."""

    model_config = ConfigDict(frozen=True, from_attributes=True)

    actor: str
    verdict: str
    reason: str
    via: str
    at: WireTime
    applied: bool
    broke_glass: bool
    refusal: str = Field(description="Why it was not applied.")


class ApprovalItem(BaseModel):
    """A request for a person's decision on exactly one call."""

    model_config = ConfigDict(frozen=True, from_attributes=True)

    id: UUID
    run_id: UUID
    operation_id: UUID
    agent: str
    tool: str
    effect: Literal["read", "write"]
    arguments_hash: str
    binding_hash: str
    policy: str
    group: str = Field(description="Only its members may decide; empty: anybody with the scope.")
    quorum: int = Field(description="How many people must say yes; one no is enough.")
    four_eyes: bool = Field(description="Who started the run, or wrote these arguments, may not approve.")
    break_glass: bool = Field(description="Whether the policy provides for emergencies.")
    on_expiry: str
    escalate_to: str = Field(description="The group that is asked next when nobody decides.")
    risk: int = Field(description="1 low: a read; 2: a write that can be recognised or looked for; 3 high: any other.")
    supersedes: UUID | None = Field(description="The request in whose place this one stands.")
    edited_by: str = Field(description="Who wrote these arguments; empty: the agent.")
    requested_by: str
    state: ApprovalState
    requested_at: WireTime
    deadline_at: WireTime
    decided_at: WireTime | None
    decided_by: str
    reason: str


class ApprovalDetail(ApprovalItem):
    """A request with what it is about."""

    binding: str = Field(
        description="Canonical JSON of the call as it will run, arguments included. `binding_hash` is its SHA-256."
    )
    votes: int = Field(description="How many people have said yes.")
    superseded_by: UUID | None = Field(description="The request that stands in the place of this one.")
    decisions: list[DecisionItem]

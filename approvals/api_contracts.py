"""Bodies of the JSON API's requests and answers about approvals."""

from __future__ import annotations

from typing import Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from kernel_project.web.fields import Text, WireTime
from kernel_project.web.pages import PageQuery

ApprovalState = Literal["waiting", "granted", "rejected", "expired", "withdrawn", "voided"]
REASON_CHARS_MAX = 10_000


class ApprovalQuery(PageQuery):
    state: ApprovalState | None = None
    run_id: UUID | None = None


class Decide(BaseModel):
    """A yes or no. Who says it is the session's or the key's person, never this body's."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    verdict: Literal["approve", "reject"]
    reason: Text = Field(default="", max_length=REASON_CHARS_MAX, examples=["The amount is what we agreed on."])


class DecisionItem(BaseModel):
    """One try to decide, applied or not."""

    model_config = ConfigDict(frozen=True, from_attributes=True)

    actor: str
    verdict: str
    reason: str
    via: str
    at: WireTime
    applied: bool
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
    four_eyes: bool = Field(description="Who started the run may not approve.")
    on_expiry: str
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
    decisions: list[DecisionItem]

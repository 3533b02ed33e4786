"""The JSON API's doors to approvals: list, read, decide, edit."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from django.http import HttpRequest
from ninja import Query, Router, Status

from approvals import selectors, services
from approvals.api_contracts import ApprovalDetail, ApprovalItem, ApprovalQuery, Decide, DecisionItem, Edit
from approvals.contracts import Decider
from approvals.models import Approval
from kernel_project.primitives.clock import wire_time
from kernel_project.web import pages
from kernel_project.web.callers import Caller, Needs, caller_of
from kernel_project.web.pages import Page

router = Router(tags=["approvals"])
COPIED = tuple(name for name in ApprovalItem.model_fields if name != "policy")


@router.get("/approvals", auth=Needs("approvals:read"), response=Page[ApprovalItem])
def list_approvals(request: HttpRequest, asked: Query[ApprovalQuery]) -> Page[ApprovalItem]:
    """Requests for decisions, newest first; `?state=waiting` is the queue."""
    below = pages.decode(asked.cursor, _place) if asked.cursor else None
    caller = caller_of(request)
    found = selectors.requests(caller.project, state=asked.state, run_id=asked.run_id, below=below)
    if asked.mine:
        found = selectors.decidable(found, _decider(caller))
    return pages.page(found.defer("binding"), asked.limit, _item, _position)


@router.get("/approvals/{approval_id}", auth=Needs("approvals:read"), response=ApprovalDetail)
def get_approval(request: HttpRequest, approval_id: UUID) -> ApprovalDetail:
    """One request, with the exact call that a yes would let run."""
    return _detail(selectors.request(caller_of(request).project, approval_id))


@router.post("/approvals/{approval_id}/decide", auth=Needs("approvals:decide"), response=ApprovalDetail)
def decide(request: HttpRequest, approval_id: UUID, asked: Decide) -> ApprovalDetail:
    """Approve or reject. The same person saying the same again gets the same answer; who comes second gets 409."""
    caller = caller_of(request)
    if asked.break_glass:
        caller.check("approvals:break_glass")
    services.decide(
        approval_id, caller.project, _decider(caller), asked.verdict, asked.reason, break_glass=asked.break_glass
    )
    return _detail(selectors.request(caller.project, approval_id))


@router.post("/approvals/{approval_id}/edit", auth=Needs("approvals:decide"), response={201: ApprovalDetail})
def edit(request: HttpRequest, approval_id: UUID, asked: Edit) -> Status[ApprovalDetail]:
    """Ask for other arguments instead. Answers with the new request; nothing runs without a yes to that one."""
    caller = caller_of(request)
    made = services.edit(approval_id, caller.project, _decider(caller), asked.arguments, asked.reason)
    return Status(201, _detail(selectors.request(caller.project, made.id)))


def _decider(caller: Caller) -> Decider:
    """Who decides: the key or the session says so, nothing in the request does."""
    return Decider(
        name=caller.name,
        groups=caller.groups,
        via="api",
        names=caller.names,
        may_break_glass="approvals:break_glass" in caller.scopes,
    )


def _fields(approval: Approval) -> dict[str, Any]:
    return {name: getattr(approval, name) for name in COPIED} | {"policy": approval.policy_name}


def _item(approval: Approval) -> ApprovalItem:
    return ApprovalItem.model_validate(_fields(approval))


def _detail(approval: Approval) -> ApprovalDetail:
    tries = sorted(approval.decisions.all(), key=lambda decision: decision.pk)
    decisions = [DecisionItem.model_validate(decision) for decision in tries]
    votes = sum(one.applied and one.verdict == "approve" for one in tries)
    more = {"binding": approval.binding, "votes": votes, "superseded_by": selectors.successor(approval)}
    return ApprovalDetail.model_validate(_fields(approval) | more | {"decisions": decisions})


def _position(approval: Approval) -> list[str | int]:
    return [wire_time(approval.requested_at), str(approval.pk)]


def _place(position: list[Any]) -> tuple[datetime, UUID]:
    at, approval_id = position
    moment = datetime.fromisoformat(at)
    if moment.tzinfo is None:
        raise ValueError(at)
    return moment, UUID(approval_id)

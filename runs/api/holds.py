"""Doors to legal holds: list, place, release. Each translates, calls one service, answers."""

from __future__ import annotations

from typing import Literal
from uuid import UUID

from django.http import HttpRequest
from ninja import Query, Router, Status
from pydantic import Field

from kernel_project.web import pages
from kernel_project.web.callers import Needs, caller_of
from kernel_project.web.fields import Text, WireTime
from kernel_project.web.pages import Page, PageQuery
from runs.api.contracts import Answer, Request
from runs.api.runs import actor_of
from runs.keeping import holds
from runs.keeping.holds import REASON_CHARS_MAX
from runs.models import Hold

router = Router(tags=["holds"])
ScopeOfHold = Literal["project", "run", "operation", "artifact"]
TARGET_CHARS_MAX = 200


class HoldQuery(PageQuery):
    """Which holds; without `in_force`, the released ones, too."""

    in_force: bool = False


class PlaceHold(Request):
    """Put something on hold. `target` is the id of a run or an operation, or an artifact's reference or digest."""

    scope: ScopeOfHold
    target: Text = Field(default="", max_length=TARGET_CHARS_MAX, description="Empty for the project itself.")
    reason: Text = Field(min_length=1, max_length=REASON_CHARS_MAX, pattern=r"\S")


class ReleaseHold(Request):
    """End a hold."""

    reason: Text = Field(min_length=1, max_length=REASON_CHARS_MAX, pattern=r"\S")


class HoldItem(Answer):
    """A hold; in force as long as `released_at` is null."""

    id: UUID
    scope: ScopeOfHold
    target: str
    run_id: UUID | None
    reason: str
    placed_by: str
    placed_at: WireTime
    released_by: str
    released_at: WireTime | None
    release_reason: str


@router.get("/holds", auth=Needs("holds:read"), response=Page[HoldItem])
def list_holds(request: HttpRequest, asked: Query[HoldQuery]) -> Page[HoldItem]:
    """The project's legal holds, newest first."""
    found = Hold.objects.filter(project=caller_of(request).project).order_by("-id")
    if asked.in_force:
        found = found.filter(released_at__isnull=True)
    if asked.cursor:
        found = found.filter(id__lt=pages.decode(asked.cursor, _place))
    return pages.page(found, asked.limit, _item, _position)


@router.post("/holds", auth=Needs("holds:write"), response={201: HoldItem})
def place_hold(request: HttpRequest, asked: PlaceHold) -> Status[HoldItem]:
    """Put the project, a run, an operation or an artifact on hold: from now on nothing deletes it."""
    caller = caller_of(request)
    hold = holds.place(
        project=caller.project, scope=asked.scope, target=asked.target, reason=asked.reason, by=actor_of(caller)
    )
    return Status(201, _item(hold))


@router.post("/holds/{hold_id}/release", auth=Needs("holds:write"), response=HoldItem)
def release_hold(request: HttpRequest, hold_id: UUID, asked: ReleaseHold) -> HoldItem:
    """End a hold. Its row stays."""
    caller = caller_of(request)
    return _item(holds.release(hold_id, project=caller.project, reason=asked.reason, by=actor_of(caller)))


def _item(hold: Hold) -> HoldItem:
    return HoldItem.model_validate({name: getattr(hold, name) for name in HoldItem.model_fields})


def _position(hold: Hold) -> list[str | int]:
    return [str(hold.id)]


def _place(position: list[object]) -> UUID:
    [hold_id] = position
    return UUID(str(hold_id))

"""Doors to legal holds: list, place, release. Each translates, calls one service, answers."""

from __future__ import annotations

from typing import Annotated, Literal
from uuid import UUID

from django.http import HttpRequest
from ninja import Query, Router, Status
from pydantic import Field, RootModel

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
Reason = Annotated[Text, Field(min_length=1, max_length=REASON_CHARS_MAX, pattern=r"\S")]


class HoldQuery(PageQuery):
    """Which holds; without `in_force`, the released ones, too."""

    in_force: bool = False


class HoldProject(Request):
    """Put the whole project on hold."""

    scope: Literal["project"]
    reason: Reason


class HoldRecord(Request):
    """Put a run on hold, or the run of an operation."""

    scope: Literal["run", "operation"]
    target: Annotated[UUID, Field(strict=False)]
    reason: Reason


class HoldArtifact(Request):
    """Put a content on hold, wherever the project has it."""

    scope: Literal["artifact"]
    target: str = Field(pattern=r"^(artifact://sha256/)?[0-9a-f]{64}$", description="Its reference or its digest.")
    reason: Reason


class PlaceHold(RootModel[Annotated[HoldProject | HoldRecord | HoldArtifact, Field(discriminator="scope")]]):
    """What is put on hold, and why."""


class ReleaseHold(Request):
    """End a hold."""

    reason: Reason


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
    caller, wanted = caller_of(request), asked.root
    target = "" if isinstance(wanted, HoldProject) else str(wanted.target)
    hold = holds.place(
        project=caller.project, scope=wanted.scope, target=target, reason=wanted.reason, by=actor_of(caller)
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

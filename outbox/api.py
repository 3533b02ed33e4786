"""The JSON API's door to the outbox: how far the event store is behind."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

from django.db import connection
from django.http import HttpRequest
from ninja import Router
from pydantic import BaseModel, ConfigDict, Field

from kernel_project.primitives.errors import NotFound
from kernel_project.primitives.sql import load
from kernel_project.web.callers import Needs, caller_of
from kernel_project.web.fields import WireTime
from outbox.destination import RETRY_AFTER_MAX_SECONDS
from outbox.place import CLOCK_MARGIN_SECONDS
from outbox.selectors import (
    AUDITED_EVENTS_MAX,
    AUDITED_STREAMS_MAX,
    PARKED_MAX,
    PUBLISHER_LATE_SECONDS,
    RECENT_STREAMS_MAX,
    STREAMS_BEHIND_MAX,
    current_destination,
    stream_lag,
)

HERE = Path(__file__).parent
router = Router(tags=["outbox"])


class ProjectLag(BaseModel):
    """How much of a project's events the event store does not have yet. Null ages: there is nothing to have an age."""

    model_config = ConfigDict(frozen=True)

    pending: int = Field(description="Events written and not delivered.")
    runs_behind: int
    oldest_age_seconds: float | None = Field(description="How long the oldest of them waits: the lag.")
    parked: int = Field(description="Events that the event store refused for good; a person has to look.")
    unaccounted: int = Field(description="Difference between cursors and journal, of the oldest runs: must be 0.")
    runs_asked: int = Field(description="Of the latest runs, those of which the event store was asked what it has.")
    acknowledged: int = Field(
        description="Events of those runs that it acknowledged, without what it refused for good."
    )
    seen: int = Field(description="Events of those runs that it says it has, up to the first that it misses unrefused.")
    runs_with_gap: int = Field(description="Of those runs, the ones of which it misses something that it acknowledged.")
    is_minimum: bool = Field(description="There is more than one look counts; the numbers are minima.")
    publisher_age_seconds: float | None = Field(description="Since a publisher was last alive.")
    publisher_late: bool = Field(description="Nothing publishes.")
    destination_failures: int = Field(description="Failures in a row of the event store; 0: it answers.")
    circuit_open_seconds: float | None = Field(description="Until the event store is tried again, after failures.")


class RunLag(BaseModel):
    """One run: what was written, what the event store acknowledged, and what it says it has."""

    model_config = ConfigDict(frozen=True, from_attributes=True)

    head: int = Field(description="Sequence of the run's last event.")
    published: int = Field(description="Last sequence that was acknowledged, or refused for good.")
    acknowledged: int = Field(description="Events that the event store acknowledged.")
    seen: int | None = Field(description="Up to which sequence it misses nothing but what it refused; null: unknown.")
    seen_at: WireTime | None = Field(description="When it was asked.")
    pending: int
    parked: int
    oldest_age_seconds: float | None
    attempts: int = Field(description="Sendings in vain of the next event.")


@router.get("/lag", auth=Needs("lag:read"), response=ProjectLag)
def get_lag(request: HttpRequest) -> ProjectLag:
    """How far the event store is behind this project."""
    return project_lag(caller_of(request).project)


@router.get("/lag/runs/{run_id}", auth=Needs("lag:read"), response=RunLag)
def get_run_lag(request: HttpRequest, run_id: UUID) -> RunLag:
    """How far the event store is behind one run, and what it says it has of it."""
    found = stream_lag(run_id)
    if found is None or found.project != caller_of(request).project:
        raise NotFound("there is no such run, or it has not told anything yet")
    return RunLag.model_validate(found)


def project_lag(project: str) -> ProjectLag:
    """The lag of one project, in one statement."""
    limits = {
        "streams_max": STREAMS_BEHIND_MAX,
        "parked_max": PARKED_MAX,
        "recent_max": RECENT_STREAMS_MAX,
        "audited_max": AUDITED_STREAMS_MAX,
        "events_max": AUDITED_EVENTS_MAX,
        "circuit_max_seconds": RETRY_AFTER_MAX_SECONDS,
        "margin_seconds": CLOCK_MARGIN_SECONDS,
    }
    with connection.cursor() as cursor:
        cursor.execute(load(HERE, "project_lag"), {"project": project, "destination": current_destination(), **limits})
        assert cursor.description is not None
        names = [column.name for column in cursor.description]
        row = dict(zip(names, cursor.fetchone(), strict=True))
    age = row["publisher_age_seconds"]
    return ProjectLag(**row, publisher_late=age is None or age > PUBLISHER_LATE_SECONDS)

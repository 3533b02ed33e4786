"""The JSON API's door to the outbox: how far the event store is behind."""

from __future__ import annotations

from pathlib import Path

from django.db import connection
from django.http import HttpRequest
from ninja import Router
from pydantic import BaseModel, ConfigDict, Field

from kernel_project.primitives.sql import load
from kernel_project.web.callers import Needs, caller_of
from outbox.selectors import PARKED_MAX, PUBLISHER_LATE_SECONDS, STREAMS_BEHIND_MAX

HERE = Path(__file__).parent
router = Router(tags=["outbox"])


class ProjectLag(BaseModel):
    """How much of a project's events the event store does not have yet. Null ages: there is nothing to have an age."""

    model_config = ConfigDict(frozen=True)

    pending: int = Field(description="Events written and not delivered.")
    runs_behind: int
    oldest_age_seconds: float | None = Field(description="How long the oldest of them waits: the lag.")
    parked: int = Field(description="Events that the event store refused for good; a person has to look.")
    is_minimum: bool = Field(description="There is more than one look counts; the numbers are minima.")
    publisher_age_seconds: float | None = Field(description="Since a publisher was last alive.")
    publisher_late: bool = Field(description="Nothing publishes.")
    destination_failures: int = Field(description="Failures in a row of the event store; 0: it answers.")
    circuit_open_seconds: float | None = Field(description="Until the event store is tried again, after failures.")


@router.get("/lag", auth=Needs("lag:read"), response=ProjectLag)
def get_lag(request: HttpRequest) -> ProjectLag:
    """How far the event store is behind this project."""
    return project_lag(caller_of(request).project)


def project_lag(project: str) -> ProjectLag:
    """The lag of one project, in one statement."""
    limits = {"streams_max": STREAMS_BEHIND_MAX, "parked_max": PARKED_MAX}
    with connection.cursor() as cursor:
        cursor.execute(load(HERE, "project_lag"), {"project": project, **limits})
        assert cursor.description is not None
        names = [column.name for column in cursor.description]
        row = dict(zip(names, cursor.fetchone(), strict=True))
    age = row["publisher_age_seconds"]
    return ProjectLag(**row, publisher_late=age is None or age > PUBLISHER_LATE_SECONDS)

"""When the jobs that beat ticks last succeeded, so that a silent beat or a deaf worker is seen. Starts none of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from django.db import connection

from kernel_project.primitives.sql import load
from outbox.place import CLOCK_MARGIN_SECONDS

HERE = Path(__file__).parent
JOBS_MAX = 100
OVERDUE_INTERVALS = 2
OVERDUE_SECONDS_MIN = 15.0  # the shortest intervals are below what a busy machine is late by


@dataclass(frozen=True)
class Job:
    """One periodic job, and since when it last succeeded, by the database clock."""

    name: str
    interval_seconds: float
    age_seconds: float

    @property
    def overdue(self) -> bool:
        return self.age_seconds > max(self.interval_seconds * OVERDUE_INTERVALS, OVERDUE_SECONDS_MIN)


def succeeded(name: str, interval_seconds: float) -> None:
    """Write down that a job did its work just now."""
    parameters: dict[str, str | float] = {
        "name": name, "interval_seconds": interval_seconds, "margin_seconds": CLOCK_MARGIN_SECONDS,
    }  # fmt: skip
    with connection.cursor() as cursor:
        cursor.execute(load(HERE, "job_succeeded"), parameters)


def all_jobs() -> list[Job]:
    """The jobs that have ever succeeded, the longest silent first."""
    with connection.cursor() as cursor:
        cursor.execute(load(HERE, "jobs"), {"jobs_max": JOBS_MAX})
        return [Job(*row) for row in cursor.fetchall()]

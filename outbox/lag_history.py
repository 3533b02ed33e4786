"""How far the event store was behind over the last hour: one sample each 15 s, in a ring of rows that never grows."""

from __future__ import annotations

from dataclasses import dataclass

from django.db import connection

from kernel_project.primitives.sql import load, rows
from outbox import selectors
from outbox.selectors import HERE

SAMPLE_SECONDS = 15.0
WINDOW_SECONDS = 3_600.0
SLOTS = int(WINDOW_SECONDS / SAMPLE_SECONDS)  # rows of the table, for ever: a sample overwrites the one of an hour ago


@dataclass(frozen=True)
class Sample:
    """What was waiting that long ago; `oldest_seconds` is 0 when nothing was."""

    age_seconds: float
    pending: int
    oldest_seconds: float


def note() -> None:
    """Write down the lag as it is now. A second call within SAMPLE_SECONDS overwrites the first."""
    lag = selectors.lag()
    rows(HERE, "note_lag", {
        "sample_seconds": int(SAMPLE_SECONDS), "slots": SLOTS, "pending": lag.pending,
        "oldest_seconds": lag.oldest_age_seconds or 0.0,
    })  # fmt: skip


def last_hour() -> list[Sample]:
    """The samples of the last hour, the oldest first. Where nobody took one, there is none."""
    with connection.cursor() as cursor:
        cursor.execute(load(HERE, "lag_history"), {"window_seconds": WINDOW_SECONDS, "slots": SLOTS})
        return [Sample(*row) for row in cursor.fetchall()]

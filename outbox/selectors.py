"""Read how far the event store is behind us: lag and gap as numbers. Bounded work, no locks, writes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import connection

from kernel_project.primitives.sql import load
from outbox.destination import RETRY_AFTER_MAX_SECONDS, destination_name
from outbox.lanes import HELD_MAX_SECONDS, LEASE_SECONDS
from outbox.place import CLOCK_MARGIN_SECONDS

HERE = Path(__file__).parent
STREAMS_BEHIND_MAX = 50_000  # streams that one look adds up, about 50 ms; beyond it the numbers are minima
AUDITED_STREAMS_MAX = 50  # the oldest of them are compared with the journal; `manage.py verify` compares all
AUDITED_EVENTS_MAX = 1_000  # per audited stream
PARKED_MAX = 10_000
RECENT_STREAMS_MAX = 1_000
UNOWNED_SECONDS = 30.0  # a stream that waits so long and nobody works on is an alarm, whatever the publishers say
SNAPSHOT_SECONDS = 60.0  # from when on a transaction held open is worth naming
WORST_STREAMS = 20  # that wait longest, named for a person
PUBLISHER_LATE_SECONDS = 15.0  # a publisher beats at least each second: beyond this nothing publishes


@dataclass(frozen=True)
class Lag:
    """The whole outbox. Ages are by the database clock; None means that there is nothing to have an age.

    `is_minimum` says that there were more streams behind, or parked events, than one look counts. `unaccounted` is the
    difference between what the oldest waiting streams promise and what the journal holds: it must be 0.
    """

    pending: int
    streams_behind: int
    oldest_age_seconds: float | None
    streams_unowned: int
    parked: int
    given_up: int
    unaccounted: int
    publisher_age_seconds: float | None
    circuit_open_seconds: float | None
    destination_failures: int
    destination_error: str

    @property
    def is_minimum(self) -> bool:
        return self.streams_behind >= STREAMS_BEHIND_MAX or self.parked >= PARKED_MAX

    @property
    def publisher_late(self) -> bool:
        return self.publisher_age_seconds is None or self.publisher_age_seconds > PUBLISHER_LATE_SECONDS


@dataclass(frozen=True)
class StreamLag:
    """One run: `head` was written, `published` acknowledged or parked, `acknowledged` without what was parked, `seen`
    is what the event store says it has.

    `seen` is None until it was asked; it is never taken from `published`.
    """

    project: str
    head: int
    published: int
    seen: int | None
    seen_at: datetime | None
    pending: int
    parked: int
    acknowledged: int
    oldest_age_seconds: float | None
    attempts: int
    last_error: str


@dataclass(frozen=True)
class RecentDelivery:
    """Sums over the latest RECENT_STREAMS_MAX runs. `seen` covers those `streams_asked` only.

    Of `streams_rewound` the event store has more than the journal: ours went back in time.
    """

    streams: int
    written: int
    acknowledged: int
    streams_asked: int
    seen: int
    acknowledged_of_asked: int
    streams_with_gap: int
    streams_rewound: int


@dataclass(frozen=True)
class Snapshot:
    """Who holds a snapshot open, and for how long: claims grow slower until it is closed (T41)."""

    pid: int
    application: str
    state: str
    age_seconds: float


def lag() -> Lag:
    """The lag of all streams together, in one statement."""
    row = _one(
        "lag",
        streams_max=STREAMS_BEHIND_MAX,
        audited_max=AUDITED_STREAMS_MAX,
        events_max=AUDITED_EVENTS_MAX,
        parked_max=PARKED_MAX,
        unowned_seconds=UNOWNED_SECONDS,
        destination=current_destination(),
        lease_seconds=LEASE_SECONDS,
        held_max_seconds=HELD_MAX_SECONDS,
        circuit_max_seconds=RETRY_AFTER_MAX_SECONDS,
        margin_seconds=CLOCK_MARGIN_SECONDS,
    )
    assert row is not None, "an aggregate always has its row"
    return Lag(**row)


def current_destination() -> str:
    """The event store that events go to now; rows of earlier ones stay and say nothing about it."""
    return destination_name(settings.TEMPORALITY_URL)


def worst_streams() -> list[dict[str, Any]]:
    """The streams whose oldest event waits longest."""
    return _rows("behind", streams=WORST_STREAMS)


def oldest_snapshot() -> Snapshot | None:
    """The longest open transaction that keeps old row versions alive, if one is open for SNAPSHOT_SECONDS."""
    row = _one("oldest_snapshot", older_seconds=SNAPSHOT_SECONDS)
    return Snapshot(**row) if row else None


def stream_lag(run_id: UUID) -> StreamLag | None:
    """The lag of one run, or None for a run that has not told anything yet."""
    row = _one("stream_lag", run_id=run_id, parked_max=PARKED_MAX)
    return StreamLag(**row) if row else None


def recent_delivery() -> RecentDelivery:
    """What of the latest runs was written, acknowledged and seen by the event store."""
    row = _one("recent_delivery", streams_max=RECENT_STREAMS_MAX, parked_max=PARKED_MAX)
    assert row is not None, "an aggregate always has its row"
    return RecentDelivery(**row)


def _one(name: str, **values: Any) -> dict[str, Any] | None:
    return next(iter(_rows(name, **values)), None)


def _rows(name: str, **values: Any) -> list[dict[str, Any]]:
    with connection.cursor() as cursor:
        cursor.execute(load(HERE, name), values)
        assert cursor.description is not None
        names = [column.name for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

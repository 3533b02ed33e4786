"""The journal's partitions: one per month, by run id (UUIDv7, so by the run's birth). Makes them ahead, drops none."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

MONTHS_AHEAD = 3  # the alarm of `headroom_months` has that long to be heard
LOCK_TIMEOUT_MILLISECONDS = 2_000  # behind a long reader we give up and try again, so that no writer queues behind us
TIMESTAMP_SHIFT = 80  # a UUIDv7 opens with 48 bits of milliseconds since 1970


def floor(moment: datetime) -> UUID:
    """The smallest UUIDv7 of that millisecond."""
    return UUID(int=int(moment.timestamp() * 1000) << TIMESTAMP_SHIFT)


def months(first: datetime, count: int) -> Iterator[tuple[datetime, datetime]]:
    """`count` months, each as (begin, end), from the one that holds `first`."""
    begin = datetime(first.year, first.month, 1, tzinfo=UTC)
    for _ in range(count):
        end = datetime(begin.year + begin.month // 12, begin.month % 12 + 1, 1, tzinfo=UTC)
        yield begin, end
        begin = end


def ensure_ahead(connection: Any, today: datetime) -> list[str]:
    """Make the partitions of this month and of MONTHS_AHEAD more; returns the names of those that were missing.

    Each is built beside the journal and then attached, which does not block readers or writers of the journal. Must
    run outside a transaction that does other work. A lock that cannot be had in time raises; the next tick tries again.
    """
    made = []
    for begin, end in months(today, MONTHS_AHEAD + 1):
        name = f"outbox_event_{begin:%Y_%m}"
        with connection.cursor() as cursor:
            cursor.execute("SELECT to_regclass(%s)", [name])
            if cursor.fetchone()[0] is None:
                cursor.execute(f"SET LOCAL lock_timeout = {LOCK_TIMEOUT_MILLISECONDS}")
                cursor.execute(_create(name, floor(begin), floor(end)))
                made.append(name)
    return made


def _create(name: str, begin: UUID, end: UUID) -> str:
    # the names and bounds are our own, not input; DDL takes no parameters
    return f"""
        CREATE TABLE {name} (LIKE outbox_event INCLUDING ALL,
            CONSTRAINT {name}_bounds CHECK (run_id >= '{begin}' AND run_id < '{end}'));
        ALTER TABLE outbox_event ATTACH PARTITION {name} FOR VALUES FROM ('{begin}') TO ('{end}');
        ALTER TABLE {name} DROP CONSTRAINT {name}_bounds;
    """

"""The journal's partitions: one per month, by run id (UUIDv7, so by the run's birth). Makes them ahead, drops none."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from django.db import connection as default_connection

MONTHS_AHEAD = 3  # the alarm of `months_ahead` has that long to be heard
LOCK_TIMEOUT_MILLISECONDS = 2_000  # behind a long reader we give up and try again, so that no writer queues behind us
TIMESTAMP_SHIFT = 80  # a UUIDv7 opens with 48 bits of milliseconds since 1970
PARTITIONS_MAX = 1_200  # a century
NAME = re.compile(r"outbox_event_(\d{4})_(\d{2})")


@dataclass(frozen=True)
class Partition:
    """One month of the journal: the run ids from `first` up to but without `beyond`."""

    name: str
    first: UUID
    beyond: UUID


def floor(moment: datetime) -> UUID:
    """The smallest UUIDv7 of that millisecond."""
    return UUID(int=int(moment.timestamp() * 1000) << TIMESTAMP_SHIFT)


def months(first: datetime, count: int) -> Iterator[tuple[datetime, datetime]]:
    """`count` months, each as (begin, end), from the one that holds `first`."""
    begin = datetime(first.year, first.month, 1, tzinfo=UTC)
    for _ in range(count):
        end = months_before(begin, -1)
        yield begin, end
        begin = end


def months_before(moment: datetime, count: int) -> datetime:
    """The beginning of the month that lies `count` months before that of `moment`."""
    number = moment.year * 12 + moment.month - 1 - count
    return datetime(number // 12, number % 12 + 1, 1, tzinfo=UTC)


def existing() -> list[Partition]:
    """The months that there are, the oldest first."""
    with default_connection.cursor() as cursor:
        cursor.execute(
            """SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
               WHERE i.inhparent = 'outbox_event'::regclass ORDER BY c.relname LIMIT %s""",
            [PARTITIONS_MAX],
        )
        names = [name for [name] in cursor.fetchall()]
    found = []
    for name in names:
        if match := NAME.fullmatch(name):
            begin = datetime(int(match[1]), int(match[2]), 1, tzinfo=UTC)
            found.append(Partition(name, floor(begin), floor(months_before(begin, -1))))
    return found


def database_now() -> datetime:
    """By the database's clock: a host whose own is wrong must neither drop a month early nor make the wrong ones."""
    with default_connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        found: datetime = cursor.fetchone()[0]
    return found


def months_ahead(today: datetime) -> int:
    """For how many months after this one partitions are there without a gap: with none, next month's runs fail."""
    names = {partition.name for partition in existing()}
    ahead = -1
    for begin, _ in months(today, MONTHS_AHEAD + 1):
        if _name(begin) not in names:
            break
        ahead += 1
    return ahead


def ensure_ahead(connection: Any, today: datetime) -> list[str]:
    """Make the partitions of this month and of MONTHS_AHEAD more; returns the names of those that were missing.

    Each is built beside the journal and then attached, which does not block readers or writers of the journal. Must
    run outside a transaction that does other work. A lock that cannot be had in time raises; the next tick tries again.
    """
    made = []
    for begin, end in months(today, MONTHS_AHEAD + 1):
        name = _name(begin)
        with connection.cursor() as cursor:
            cursor.execute("SELECT to_regclass(%s)", [name])
            if cursor.fetchone()[0] is None:
                cursor.execute(f"SET LOCAL lock_timeout = {LOCK_TIMEOUT_MILLISECONDS}")
                cursor.execute(_create(name, floor(begin), floor(end)))
                made.append(name)
    return made


def _name(begin: datetime) -> str:
    return f"outbox_event_{begin:%Y_%m}"


def _create(name: str, begin: UUID, end: UUID) -> str:
    # the names and bounds are our own, not input; DDL takes no parameters
    return f"""
        CREATE TABLE {name} (LIKE outbox_event INCLUDING ALL,
            CONSTRAINT {name}_bounds CHECK (run_id >= '{begin}' AND run_id < '{end}'));
        ALTER TABLE outbox_event ATTACH PARTITION {name} FOR VALUES FROM ('{begin}') TO ('{end}');
        ALTER TABLE {name} DROP CONSTRAINT {name}_bounds;
        {guard_against_truncate(name)};
    """


def guard_against_truncate(name: str) -> str:
    """A month does not inherit it: triggers of statements are each table's own."""
    return f"""
        CREATE OR REPLACE TRIGGER outbox_event_not_emptied BEFORE TRUNCATE ON {name}
        FOR EACH STATEMENT EXECUTE FUNCTION outbox_event_is_immutable()
    """

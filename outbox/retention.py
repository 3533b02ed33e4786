"""Drop old months of the journal, each as a whole: never one that holds what is undelivered, parked or held.

Independent of making partitions: neither waits for the other nor fails with it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from django.db import OperationalError, connection, transaction
from psycopg import sql

from kernel_project.primitives.sql import load
from outbox import partitions
from outbox.signals import journal_month_expires, streams_expire

logger = logging.getLogger(__name__)
HERE = Path(__file__).parent
MONTHS_PER_LOOK = 12  # the oldest ones; the next look takes the next
STREAMS_PER_BATCH = 5_000
FORGET_BATCHES_MAX = 2_000  # of one look
MONTHS_KEPT_MIN = 2  # a run that began last month may well be at work


@dataclass(frozen=True)
class Looked:
    """What became of one month that is old enough to go; `kept_for` says why it stayed."""

    partition: str
    kept_for: str = ""

    @property
    def dropped(self) -> bool:
        return not self.kept_for


def drop_old(today: datetime, months_kept: int) -> list[Looked]:
    """Drop the months that ended `months_kept` whole months ago, the oldest first; 0 keeps everything.

    Each is dropped in a transaction of its own, which gives up rather than let writers queue behind it: what could not
    be dropped now is tried by the next tick.
    """
    if not months_kept:
        return []
    edge = partitions.months_before(today, max(months_kept, MONTHS_KEPT_MIN))
    old = [found for found in partitions.existing() if found.beyond <= partitions.floor(edge)]
    looked = [_drop(found) for found in old[:MONTHS_PER_LOOK]]
    for first, beyond in _gone(partitions.existing()):
        _forget_streams(first, beyond)
    return looked


def _gone(left: list[partitions.Partition]) -> Iterator[tuple[UUID, UUID]]:
    """The run ids whose months are gone: before the first, and between two where an older one stayed."""
    first = UUID(int=0)
    for month in left:
        if first < month.first:
            yield first, month.first
        first = month.beyond


def _drop(month: partitions.Partition) -> Looked:
    try:
        kept_for = _needed(month) or _drop_unless_changed(month, _heads(month))
    except OperationalError as error:
        kept_for = f"busy ({type(error.__cause__).__name__}); tried again later"
    if kept_for:
        logger.info("the journal's %s stays: %s", month.name, kept_for)
    else:
        logger.warning("the journal's %s was dropped: its retention is over", month.name)
    return Looked(month.name, kept_for)


def _needed(month: partitions.Partition) -> str:
    """The long look, without a lock: why the month must stay, or ""."""
    [why] = _row("needed_month", month)
    return str(why) if why else _held(month.first, month.beyond)


@transaction.atomic
def _drop_unless_changed(month: partitions.Partition, heads: object) -> str:
    """The short look, under a lock that lets nobody write: a run that went on meanwhile keeps its month."""
    with connection.cursor() as cursor:
        cursor.execute(f"SET LOCAL lock_timeout = {partitions.LOCK_TIMEOUT_MILLISECONDS}")
        name = sql.Identifier(month.name).as_string(None)
        cursor.execute(f"LOCK TABLE outbox_event, {name} IN ACCESS EXCLUSIVE MODE")
        if _heads(month) != heads:
            return "a run went on meanwhile"
        if reason := _held(month.first, month.beyond):  # laid down meanwhile
            return reason
        cursor.execute(f"DROP TABLE {name}")
    return ""


def _heads(month: partitions.Partition) -> object:
    """What any append, delivery or parking in the month changes."""
    return _row("month_heads", month)


def _forget_streams(first: UUID, beyond: UUID) -> int:
    """Remove the streams whose month is gone, in short transactions; one that was cut off is gone on with.

    Whoever still needs a stream says so: of a run that may yet tell something it is what the numbering goes on from.
    """
    removed = 0
    for _ in range(FORGET_BATCHES_MAX):
        with connection.cursor() as cursor:
            cursor.execute(load(HERE, "gone_streams"), {"first": first, "beyond": beyond, "streams": STREAMS_PER_BATCH})
            found = [run_id for (run_id,) in cursor.fetchall()]
            if goes := sorted(set(found) - _kept(found)):
                cursor.execute(load(HERE, "forget_streams"), {"run_ids": goes})
                removed += cursor.rowcount
        if len(found) < STREAMS_PER_BATCH:
            break
        first = UUID(int=found[-1].int + 1)
    return removed


def _kept(run_ids: list[UUID]) -> set[UUID]:
    """The streams that somebody needs; all of them if somebody cannot say."""
    kept: set[UUID] = set()
    for receiver, answer in streams_expire.send_robust(sender=None, run_ids=run_ids):
        if isinstance(answer, Exception):
            logger.warning("%s could not say which streams it needs: all stay", getattr(receiver, "__module__", "?"))
            return set(run_ids)
        kept |= set(answer or ())
    return kept


def _row(name: str, month: partitions.Partition) -> tuple[Any, ...]:
    with connection.cursor() as cursor:
        cursor.execute(load(HERE, name), {"first": month.first, "beyond": month.beyond})
        found: tuple[Any, ...] = cursor.fetchone()
    return found


def _held(first: UUID, beyond: UUID) -> str:
    """Ask everybody who may have a reason to keep these runs; who cannot answer keeps them."""
    for receiver, answer in journal_month_expires.send_robust(sender=None, first=first, beyond=beyond):
        if isinstance(answer, Exception):
            return f"{getattr(receiver, '__module__', 'a receiver')} could not say whether it is needed"
        if answer:
            return str(answer)
    return ""

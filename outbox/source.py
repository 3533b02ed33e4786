"""Under which name events are told: KERNEL_SOURCE_ID, and after a restore from a backup its epoch. Sends nothing."""

from __future__ import annotations

import time

from django.conf import settings
from django.db import connection, transaction

from kernel_project.primitives.errors import Conflict, Invalid
from outbox.models import SourceEpoch

SEPARATOR = "~"  # which KERNEL_SOURCE_ID cannot contain
REMEMBERED_SECONDS = 5.0  # a process that ran on over a raise tells its events under the old name for so long
NOTE_CHARS_MAX = 2_000
_remembered: tuple[float, str] = (0.0, "")


def source_id() -> str:
    """The `source.id` of new events."""
    global _remembered
    until, name = _remembered
    if time.monotonic() >= until:
        newest = SourceEpoch.objects.order_by("-name").values_list("name", flat=True).first()
        name = _named(newest)
        _remembered = time.monotonic() + REMEMBERED_SECONDS, name
    return name


def source_ids() -> list[str]:
    """All names that events of ours may bear, the oldest first."""
    epochs = SourceEpoch.objects.order_by("name").values_list("name", flat=True)
    return [_named(None), *(_named(epoch) for epoch in epochs)]


@transaction.atomic
def raise_epoch(*, by: str, note: str) -> SourceEpoch:
    """Tell new events under a new name from now on: to be done after each restore, before anything else starts.

    After a restore the journal counts again from where the backup stood. Under the old name the event store would
    find another event at numbers that it has already, and would refuse it. The name is taken from the database clock:
    a counter would come back with the same number after a second restore of the same backup.
    """
    if not by.strip() or not note.strip() or len(note) > NOTE_CHARS_MAX:
        raise Invalid(f"say who raises the epoch and why, in at most {NOTE_CHARS_MAX} characters")
    with connection.cursor() as cursor:
        cursor.execute("LOCK TABLE outbox_sourceepoch IN SHARE ROW EXCLUSIVE MODE")
        cursor.execute("SELECT to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYYMMDDHH24MISS')")
        [name] = cursor.fetchone()
    newest = SourceEpoch.objects.order_by("-name").first()
    if newest is not None and newest.name >= name:
        raise Conflict(f"the epoch {newest.name} is not over yet by the database clock: wait, or set the clock right")
    epoch = SourceEpoch.objects.create(name=name, raised_by=by, note=note)
    forget()
    return epoch


def forget() -> None:
    """Look again at the next event."""
    global _remembered
    _remembered = (0.0, "")


def _named(epoch: str | None) -> str:
    return f"{settings.KERNEL_SOURCE_ID}{SEPARATOR}{epoch}" if epoch else str(settings.KERNEL_SOURCE_ID)

"""Producer time. Leases and deadlines are judged by the database clock, never by this one."""

from __future__ import annotations

from datetime import UTC, datetime


def now() -> datetime:
    """The time in UTC, with offset."""
    return datetime.now(UTC)


def wire_time(moment: datetime) -> str:
    """RFC 3339 in UTC with `Z` and microseconds: the one form in which times leave the kernel."""
    if moment.tzinfo is None:
        raise ValueError(f"a time without offset cannot be sent: {moment!r}")
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")

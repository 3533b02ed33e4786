"""The audit chains: seal what was done and decided, and find what was changed since. Writes no entry itself.

Each entry's hash covers the one before it, so an entry that is changed, left out or put in breaks its chain there. What
a chain cannot show is a cut at its end: compare `head` with one that is kept elsewhere, such as in a bundle.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from django.db import connection, transaction

from kernel_project.primitives.canonical import canonical_bytes, sha256_hex
from kernel_project.primitives.clock import wire_time
from kernel_project.primitives.sql import rows
from runs.models import AuditEntry

HERE = Path(__file__).parent.parent
ENTRIES_PER_SEAL = 1_000
SEALS_MAX = 1_000  # of one tick
ENTRIES_PER_LOOK = 5_000
BROKEN_MAX = 100  # breaks that one look names
SEALING = 0x61756469  # one sealer at a time: the advisory lock of this number
NOTHING = ("", -1)


def link(
    previous: str,
    project: str,
    sequence: int,
    action: str,
    event_id: UUID | None,
    run_id: UUID | None,
    content_hash: str,
    actor: str,
    at: datetime,
) -> str:
    """The hash of an entry, which covers all of it and the hash before it."""
    ids = [str(one) if one else "" for one in (event_id, run_id)]
    return sha256_hex(canonical_bytes([previous, project, sequence, action, *ids, content_hash, actor, wire_time(at)]))


def seal() -> int:
    """Put all entries that are written and committed into their chains; returns how many."""
    sealed = 0
    for _ in range(SEALS_MAX):
        with transaction.atomic():
            count = _seal_some()
        sealed += count
        if count < ENTRIES_PER_SEAL:
            break
    return sealed


def _seal_some() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [SEALING])
    found = rows(HERE, "unsealed", {"entries": ENTRIES_PER_SEAL})
    heads: dict[str, tuple[int, str]] = {}
    done = []
    for entry_id, action, event_id, run_id, content_hash, at, detail, envelope in found:
        project, actor = _told(envelope, detail)
        sequence, previous = heads.get(project) or head(project)
        sealed = link(previous, project, sequence + 1, action, event_id, run_id, content_hash, actor, at)
        heads[project] = (sequence + 1, sealed)
        done.append((project, actor, sequence + 1, previous, sealed, entry_id))
    with connection.cursor() as cursor:
        cursor.executemany(
            "UPDATE runs_auditentry SET project = %s, actor = %s, sequence = %s, previous_hash = %s, hash = %s"
            " WHERE id = %s",
            done,
        )
    return len(found)


def head(project: str) -> tuple[int, str]:
    """The last sealed entry of a project: its number and hash; (0, "") before the first."""
    last = AuditEntry.objects.filter(project=project, sequence__isnull=False).order_by("-sequence").first()
    return (last.sequence or 0, last.hash) if last else (0, "")


def _told(envelope: str | None, detail: str) -> tuple[str, str]:
    """Project and actor of an entry."""
    if envelope is None:
        known: dict[str, Any] = json.loads(detail) if detail else {}
        return str(known.get("project", "")), str(known.get("user", ""))[:200]
    context = json.loads(envelope)["context"]
    return str(context.get("project", "")), str(context["actor"]["id"])[:200]


def broken() -> list[str]:
    """Where a chain does not hold, or an event of the journal is not the one that was told; at most BROKEN_MAX."""
    found: list[str] = []
    last: dict[str, tuple[int, str]] = {}
    for row in _chains():
        if len(found) >= BROKEN_MAX:
            break
        found.extend(_breaks(row, last))
    return found


def _breaks(row: tuple[Any, ...], last: dict[str, tuple[int, str]]) -> Iterator[str]:
    _, project, sequence, action, event_id, run_id, content_hash, actor, at, detail, previous, own, current = row
    before = last.get(project, (0, ""))
    last[project] = (sequence, own)
    where = f"{project or 'installation'} #{sequence}"
    if (sequence, previous) != (before[0] + 1, before[1]):
        yield f"{where}: does not follow #{before[0]}"
    if own != link(previous, project, sequence, action, event_id, run_id, content_hash, actor, at):
        yield f"{where}: is not what was sealed"
    if current not in (None, content_hash) or (detail and sha256_hex(detail.encode()) != content_hash):
        yield f"{where}: {action} of {event_id or actor} is not what was told"


def _chains() -> Iterator[tuple[Any, ...]]:
    """All sealed entries, chain by chain, a stretch at a time."""
    project, sequence = NOTHING
    while found := rows(HERE, "chain", {"project": project, "sequence": sequence, "entries": ENTRIES_PER_LOOK}):
        yield from found
        project, sequence = found[-1][1], found[-1][2]

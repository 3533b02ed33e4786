"""What must hold in the database at any moment, as queries: each finds the rows that break one rule. Mends nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

from django.db import connection, transaction

from outbox import partitions
from runs.keeping import audit

HERE = Path(__file__).parent
FOLDER = HERE / "sql" / "verify"
EXAMPLES_MAX = 5
SECONDS_MAX = 600  # for one check; over ten million rows each takes a scan


@dataclass(frozen=True)
class Check:
    """One rule and what breaks it."""

    id: str
    rule: str
    count: int
    examples: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return self.count == 0

    def as_json(self) -> dict[str, Any]:
        return {"id": self.id, "ok": self.ok, "count": self.count, "examples": self.examples, "rule": self.rule}


def names() -> list[str]:
    """The checks there are: one file each in sql/verify/, whose first line says the rule."""
    return sorted(path.stem for path in FOLDER.glob("*.sql"))


def run() -> list[Check]:
    """Make all checks over one snapshot, so that what moves meanwhile does not look broken."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        cursor.execute("SELECT set_config('statement_timeout', %s, true)", [f"{SECONDS_MAX}s"])
        since = journal_from()
        return [*(check(cursor, name, since) for name in names()), _chain()]


def _chain() -> Check:
    broken = audit.broken()
    rule = "The audit chain of each project is whole, and its events are as they were told."
    return Check("audit_chain_is_whole", rule, len(broken), broken[:EXAMPLES_MAX])


def journal_from() -> UUID:
    """The first run id from which on no month of the journal is missing: what older runs have told was dropped with its
    month, or stands alone behind a month that was dropped.
    """
    first = UUID(int=0)
    for newer in reversed(partitions.existing()):
        if first.int and newer.beyond != first:
            break
        first = newer.first
    return first


def check(cursor: Any, name: str, since: UUID) -> Check:
    """Make one check. The query's text is a file of ours; `since` stands for %(journal_from)s in it."""
    text = (FOLDER / f"{name}.sql").read_text()
    rule = text.partition("\n")[0].removeprefix("-- ")
    found = f"SELECT (SELECT count(*) FROM broken), ARRAY(SELECT what::text FROM broken LIMIT {EXAMPLES_MAX})"  # noqa: S608  no text of others
    cursor.execute(f"WITH broken AS MATERIALIZED ({text}) {found}", {"journal_from": since})
    count, examples = cursor.fetchone()
    return Check(name, rule, count, examples)

"""No migration is missing; and during a deploy old code lives with the new schema: a migration adds, and what it adds,
old code need not know.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.core.management import call_command
from django.db.migrations import Migration
from django.db.migrations import operations as ops
from django.db.migrations.loader import MigrationLoader
from django.db.models import NOT_PROVIDED

OURS = ("runs", "outbox", "approvals", "temporality")
TAKES_AWAY = (ops.RemoveField, ops.DeleteModel, ops.RenameField, ops.RenameModel, ops.AlterModelTable)
# From before the first release, when there was no old code to live with.
BEFORE_RELEASE = {
    ("temporality", "0005_compare_contents_and_find_items_by_state"): "RemoveField event content_hash",
}


def breaks(migration: Migration) -> Iterator[str]:
    made = {op.name.lower() for op in migration.operations if isinstance(op, ops.CreateModel)}
    for op in flat(migration.operations):
        if isinstance(op, TAKES_AWAY):
            yield f"{type(op).__name__} {getattr(op, 'model_name', '')} {getattr(op, 'name', '')}"
        elif isinstance(op, ops.AddField) and op.model_name.lower() not in made:
            known = op.field.null or op.field.many_to_many or op.field.db_default is not NOT_PROVIDED
            if not known:
                yield f"AddField {op.model_name} {op.name}: old code writes rows without it; give it a db_default"


def flat(found: list[ops.base.Operation]) -> Iterator[ops.base.Operation]:
    for op in found:
        yield from flat(op.database_operations) if isinstance(op, ops.SeparateDatabaseAndState) else [op]


def test_no_migration_takes_away_or_demands_what_old_code_does_not_write() -> None:
    loader = MigrationLoader(None)
    ours = {key: one for key, one in loader.disk_migrations.items() if key[0] in OURS}
    assert len(ours) > 20
    found = {key: broken for key, one in ours.items() if (broken := "; ".join(breaks(one)))}
    assert found == BEFORE_RELEASE


@pytest.mark.django_db(databases=["default", "temporality"])
def test_no_migration_is_missing(capsys):
    call_command("makemigrations", check_changes=True, dry_run=True, verbosity=1)
    assert capsys.readouterr().out == "No changes detected\n"

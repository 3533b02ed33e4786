"""Every change of a model has its migration, and the migrations of each app lead to one end."""

from __future__ import annotations

import pytest
from django.core.management import call_command


@pytest.mark.django_db(databases=["default", "temporality"])
def test_no_migration_is_missing(capsys):
    call_command("makemigrations", check_changes=True, dry_run=True, verbosity=1)
    assert capsys.readouterr().out == "No changes detected\n"

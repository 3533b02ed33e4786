"""manage.py verify_bundle: is this exported run what was signed? Needs the file and the public key, no database."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from runs.keeping import bundles


class Command(BaseCommand):
    help = "Check a bundle of manage.py export. Touches no database and no other file."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("bundle", type=Path)
        parser.add_argument("--public-key", required=True, help="as the exporting side told you, on another way")

    def handle(self, *, bundle: Path, public_key: str, **options: Any) -> None:
        if problems := bundles.check(bundle, public_key):
            raise CommandError("; ".join(problems[:20]))
        self.stdout.write(f"{bundle}: whole and as it was signed")

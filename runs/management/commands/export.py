"""manage.py export: a run as a signed bundle for somebody who has no access to this installation."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

from django.core.management.base import BaseCommand, CommandError, CommandParser

from kernel_project.primitives.errors import KernelError
from runs.keeping import bundles


class Command(BaseCommand):
    help = "Write a run with its operations, approvals, events, audit entries and artifacts into one signed file."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("run", nargs="?", type=UUID)
        parser.add_argument("--out", default="", help="the file (default: RUN.bundle)")
        parser.add_argument("--new-key", action="store_true", help="print a new private and public key; export nothing")

    def handle(self, *, run: UUID | None, out: str, **options: Any) -> None:
        if options["new_key"]:
            private, public = bundles.new_key()
            self.stdout.write(f"EXPORT_SIGNING_KEY={private}\npublic key: {public}")
            return
        if run is None:
            raise CommandError("name the run")
        target = Path(out or f"{run}.bundle")
        try:
            manifest = bundles.export(run, target)
        except KernelError as error:
            raise CommandError(error.message) from None
        self.stdout.write(f"{target}: {len(manifest['files'])} files, public key {manifest['public_key']}")

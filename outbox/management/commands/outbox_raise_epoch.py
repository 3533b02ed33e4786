"""manage.py outbox_raise_epoch: to be run once after a restore from a backup, before anything else starts."""

from __future__ import annotations

import getpass
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from kernel_project.primitives.errors import KernelError
from outbox import source


class Command(BaseCommand):
    help = "Tell new events under a new source, so that they do not collide with what was sent before the restore."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--note", required=True, help="which backup was restored, and why")
        parser.add_argument("--by", default="", help="who did it (default: your account on this machine)")

    def handle(self, *, note: str, by: str, **options: Any) -> None:
        try:
            source.raise_epoch(by=by or getpass.getuser(), note=note)
        except KernelError as error:
            raise CommandError(error.message) from error
        self.stdout.write(f"events are told as {source.source_id()} from now on; restart whatever runs")

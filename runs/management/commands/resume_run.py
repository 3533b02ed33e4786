"""manage.py resume_run RUN: let a failed run go on, with the operations that it has."""

from __future__ import annotations

import getpass
import os
import sys
from typing import Any
from uuid import UUID

from django.core.management.base import BaseCommand, CommandError, CommandParser

from kernel_project.primitives.errors import KernelError
from outbox.contracts import Actor
from runs.loop import resumes
from runs.models import Run


class Command(BaseCommand):
    help = "Let a failed run go on: nothing that succeeded or is uncertain is done again."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("run", type=UUID)
        parser.add_argument("--by", default="", help="who answers for it (default: your account on this machine)")

    def handle(self, *, run: UUID, by: str, **options: Any) -> None:
        project = Run.objects.filter(id=run).values_list("project_id", flat=True).first()
        if project is None:
            raise CommandError(f"there is no run {run}")
        try:
            resumes.resume(run, project, Actor(id=by or getpass.getuser(), type="human"))
        except KernelError as error:
            raise CommandError(error.message) from error
        self.stdout.write(f"run {run} goes on")

    def run_from_argv(self, argv: list[str]) -> None:
        super().run_from_argv(argv)
        sys.stdout.flush()
        os._exit(0)  # the Temporal library may abort at interpreter exit, after all work is done

"""manage.py runs_build: which builds of the worker there are, and which one runs go on with."""

from __future__ import annotations

import os
import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from kernel_project.primitives.errors import KernelError
from runs.loop import builds


class Command(BaseCommand):
    help = "Show the builds of the worker, or let all runs go on with one of them (KERNEL_WORKER_VERSIONING)."

    def add_arguments(self, parser: CommandParser) -> None:
        which = parser.add_mutually_exclusive_group()
        which.add_argument(
            "--current", metavar="BUILD", help="runs go on with workers of this build: deploy, roll back"
        )
        which.add_argument("--unversioned", action="store_true", help="runs go on with workers that name no build")

    def handle(self, *, current: str | None, unversioned: bool, **options: Any) -> None:
        try:
            if unversioned or current:
                builds.make_current(current or "")
            known = builds.known()
        except KernelError as error:
            raise CommandError(error.message) from error
        if not known:
            self.stdout.write("no worker has named a build: set KERNEL_BUILD_ID and KERNEL_WORKER_VERSIONING=true")
        for build in known:
            self.stdout.write(f"{build.status:<10} {build.name}")

    def run_from_argv(self, argv: list[str]) -> None:
        super().run_from_argv(argv)
        sys.stdout.flush()
        os._exit(0)  # the Temporal library may abort at interpreter exit, after all work is done

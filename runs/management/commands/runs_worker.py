"""manage.py runs_worker: the process that carries runs out."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from django.core.management.base import BaseCommand, CommandParser

if TYPE_CHECKING:
    from runs.loop.queues import Role


class Command(BaseCommand):
    help = "Work for Temporal: run workflows and activities until SIGTERM, then drain and end."
    requires_system_checks: list[str] = []  # they import every page of the admin; a step of the deployment

    def add_arguments(self, parser: CommandParser) -> None:
        from runs.loop.queues import ROLES

        which = "with KERNEL_SEPARATE_QUEUES, the kinds of work that this process takes (default: all)"
        parser.add_argument("--only", nargs="+", choices=ROLES, default=ROLES, metavar="WORK", help=which)

    def handle(self, *, only: Sequence[Role], **options: Any) -> None:
        from runs.loop.worker import work

        code = 0
        try:
            asyncio.run(work(only))
        except SystemExit as error:
            print(error, file=sys.stderr)
            code = 1
        logging.shutdown()
        sys.stdout.flush()
        os._exit(code)  # the Temporal library may abort at interpreter exit, after all work is done

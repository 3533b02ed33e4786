"""manage.py runs_worker: the process that carries runs out."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from typing import Any

from django.core.management.base import BaseCommand


class Command(BaseCommand):
    help = "Work for Temporal: run workflows and activities until SIGTERM, then drain and end."
    requires_system_checks: list[str] = []  # they import every page of the admin; a step of the deployment

    def handle(self, **options: Any) -> None:
        from runs.loop.worker import work

        code = 0
        try:
            asyncio.run(work())
        except SystemExit as error:
            print(error, file=sys.stderr)
            code = 1
        logging.shutdown()
        sys.stdout.flush()
        os._exit(code)  # the Temporal library may abort at interpreter exit, after all work is done

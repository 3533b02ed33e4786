"""manage.py drill: break each row of the failure table on a stack of its own, and print what was observed."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser


class Command(BaseCommand):
    help = "Break what the rows of the failure table name, for real; exits with an error when one does not hold."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("rows", nargs="*", metavar="ROW", help="F1 … F12; default: all")
        parser.add_argument("--json", action="store_true", help="one JSON object instead of lines")

    def handle(self, *, rows: list[str], **options: Any) -> None:
        from kernel_project.devstack.stack import running
        from kernel_project.drill import rows as table
        from kernel_project.drill.scene import Scene, environment

        names = [row.name for row in table.ROWS]
        if unknown := sorted(set(rows) - set(names)):
            raise CommandError(f"there is no row {unknown[0]!r}; there are {', '.join(names)}")
        chosen = [row for row in table.ROWS if not rows or row.name in rows]
        report = []
        with running() as stack:
            stack.extra_environment.update(environment(Path(stack.layout.var)))
            stack.restart("web")
            stack.restart("worker")
            scene = Scene(stack, table.AGENTS, table.POLICIES)
            for row in chosen:
                began = time.monotonic()
                held, seen = table.observe(row, scene)
                seconds = round(time.monotonic() - began, 1)
                report.append(
                    {"row": row.name, "held": held, "asked": row.asked, "observed": "; ".join(seen), "seconds": seconds}
                )
                if not options["json"]:
                    self._tell(row.name, row.asked, seen, held=held, seconds=seconds)
        if options["json"]:
            self.stdout.write(json.dumps({"rows": report}))
        if broken := [entry["row"] for entry in report if not entry["held"]]:
            raise CommandError(f"broken: {', '.join(map(str, broken))}")

    def _tell(self, name: str, asked: str, seen: list[str], *, held: bool, seconds: float) -> None:
        self.stdout.write(f"{name:<4}{'held' if held else 'BROKEN':<8}{asked} ({seconds} s)")
        for line in seen:
            self.stdout.write(f"            {line}")
        self.stdout.flush()

"""manage.py drill: break each row of the failure table, on its own stack or a running one, and tell what was seen."""

from __future__ import annotations

import json
import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

KILLS_MAX = 1_000


class Command(BaseCommand):
    help = "Break what the rows of the failure table name, for real; exits with an error when one does not hold."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("rows", nargs="*", metavar="ROW", help="F1 … F12; default: all")
        parser.add_argument("--json", action="store_true", help="one JSON object instead of lines")
        matrix = parser.add_argument_group("the crash matrix, in place of the rows")
        matrix.add_argument("--crash-matrix", action="store_true", help="kill at every fault point; see docs")
        matrix.add_argument("--kills", type=int, default=10, help="for each fault point and kind of adapter")
        matrix.add_argument("--worker-kills", type=int, default=1, help="the same, of the real worker; 0: none")
        matrix.add_argument("--point", action="append", default=[], help="only this fault point; may be repeated")
        matrix.add_argument("--adapter", action="append", default=[], help="only this kind; may be repeated")
        parser.add_argument(
            "--running",
            action="store_true",
            help="break the stack that `manage.py up` runs, and give it back whole (the crash matrix: play on "
            "the database of the environment, which keeps its rows)",
        )

    def handle(self, *, rows: list[str], crash_matrix: bool, **options: Any) -> None:
        if crash_matrix:
            self._matrix(**options)
        else:
            self._rows(rows, **options)

    def _rows(self, names: list[str], **options: Any) -> None:
        from kernel_project.devstack.api_client import NotAsPromised
        from kernel_project.devstack.errors import DevstackError
        from kernel_project.drill import rows as table

        known = [row.name for row in table.ROWS]
        if unknown := sorted(set(names) - set(known)):
            raise CommandError(f"there is no row {unknown[0]!r}; there are {', '.join(known)}")
        report = []
        chosen = [row for row in table.ROWS if not names or row.name in names]
        try:
            for told in table.play(chosen, on_running=options["running"]):
                report.append(told)
                if not options["json"]:
                    self._tell(told)
        except (DevstackError, NotAsPromised) as error:
            raise CommandError(f"there is no stage to play on: {error}") from None
        if options["json"]:
            self.stdout.write(json.dumps({"rows": [told.as_json() for told in report]}))
        if wrong := [f"{told.row} {told.word.lower()}" for told in report if not told.held]:
            raise CommandError(", ".join(wrong))

    def _tell(self, told: Any) -> None:
        self.stdout.write(f"{told.row:<4}{told.word:<8}{told.asked} ({told.seconds} s)")
        for line in [told.not_run] if told.not_run else told.seen:
            self.stdout.write(f"            {line}")
        self.stdout.flush()

    def _matrix(self, **options: Any) -> None:
        from kernel_project.drill import crash

        kills, points, adapters = options["kills"], options["point"], options["adapter"]
        if not 1 <= kills <= KILLS_MAX:
            raise CommandError(f"--kills must be 1 to {KILLS_MAX}")

        def say(line: str) -> None:
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()

        if options["running"]:
            report = crash.on_this_stack(kills, say, points, adapters)
        else:
            words = [*(f"--point={name}" for name in points), *(f"--adapter={name}" for name in adapters)]
            report = crash.on_own_stacks(kills, options["worker_kills"], words, say)
        self.stdout.write(json.dumps(report) if options["json"] else crash.text(report))
        if wrong := crash.problems(report):
            raise CommandError("not as promised: " + "; ".join(wrong))

"""manage.py bench NAME: measure, beside a limit measured in the same run, on a stack of its own or the running one."""

from __future__ import annotations

import json
import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from kernel_project.bench import BENCHES, Figure, machine

SECONDS_MAX = 3_600.0
ROWS_MAX = 100_000_000  # what a disk may be expected to hold


class Command(BaseCommand):
    help = "Run a benchmark; exits with an error when a bar is not met. Names: " + ", ".join(sorted(BENCHES))
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name", choices=sorted(BENCHES))
        parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
        sized = ", ".join(name for name, bench in BENCHES.items() if bench.has_size)
        parser.add_argument("--rows", type=_rows, help=f"of {sized} only: how many rows to measure over")
        parser.add_argument(
            "--running", action="store_true", help="on the stack of the environment, not one of its own"
        )

    def handle(self, *, name: str, running: bool, rows: int | None, **options: Any) -> None:
        if rows and not BENCHES[name].has_size:
            raise CommandError(f"bench {name} takes no --rows")
        sized = {"rows": rows} if rows else {}
        if not running:
            words = [*(["--json"] if options["json"] else []), *(["--rows", str(rows)] if rows else [])]
            return self._on_own_stack(name, words)
        figures = BENCHES[name].load()(**sized)
        if options["json"]:
            report = {"bench": name, "machine": machine(), "figures": [figure.as_json() for figure in figures]}
            self.stdout.write(json.dumps(report))
        else:
            self._table(figures)
        if missed := [figure.name for figure in figures if not figure.ok]:
            raise CommandError(f"below the bar: {', '.join(missed)}")
        return None

    def _on_own_stack(self, name: str, options: list[str]) -> None:
        from kernel_project.devstack.stack import running

        with running(services=BENCHES[name].services) as stack:
            done = stack.manage("bench", name, "--running", *options, seconds_max=SECONDS_MAX)
        self.stdout.write(done.stdout.rstrip("\n"))
        sys.stderr.write(done.stderr)
        if done.returncode:
            raise SystemExit(done.returncode)

    def _table(self, figures: list[Figure]) -> None:
        self.stdout.write(f"on {json.dumps(machine())}")
        for figure in figures:
            measured = [f"{peer}: {value:.1f}" for peer, value in figure.beside.items()]
            beside = "  ".join(
                [*measured, *(f"{peer}: absent, {why}" for peer, why in figure.absent.items()), figure.about]
            )
            verdict = "ok" if figure.ok else "BELOW"
            self.stdout.write(
                f"{figure.name:<32}{figure.value:>12.1f} {figure.unit:<10}{figure.bar:<12}{verdict:<7}{beside}".rstrip()
            )


def _rows(text: str) -> int:
    rows = int(text)
    if not 1 <= rows <= ROWS_MAX:
        raise ValueError(f"the rows must be between 1 and {ROWS_MAX}")
    return rows

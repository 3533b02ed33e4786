"""manage.py bench NAME: measure, beside a limit measured in the same run, on a stack of its own or the running one."""

from __future__ import annotations

import json
import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from kernel_project.bench import BENCHES, Figure, machine

SECONDS_MAX = 3_600.0


class Command(BaseCommand):
    help = "Run a benchmark; exits with an error when a bar is not met. Names: " + ", ".join(sorted(BENCHES))
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name", choices=sorted(BENCHES))
        parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
        parser.add_argument(
            "--running", action="store_true", help="on the stack of the environment, not one of its own"
        )

        parser.add_argument("--rows", type=int, help="of a benchmark that takes a number of rows: how many")

    def handle(self, *, name: str, running: bool, **options: Any) -> None:
        size = {"rows": options["rows"]} if options["rows"] else {}
        if size and not BENCHES[name].sized:
            raise CommandError(f"{name} takes no --rows")
        if not running:
            return self._on_own_stack(name, options["rows"], as_json=options["json"])
        figures = BENCHES[name].load()(**size)
        if options["json"]:
            report = {"bench": name, "machine": machine(), "figures": [figure.as_json() for figure in figures]}
            self.stdout.write(json.dumps(report))
        else:
            self._table(figures)
        if missed := [figure.name for figure in figures if not figure.ok]:
            raise CommandError(f"below the bar: {', '.join(missed)}")
        return None

    def _on_own_stack(self, name: str, rows: int | None, *, as_json: bool) -> None:
        from kernel_project.devstack.stack import running

        with running(services=BENCHES[name].services) as stack:
            words = ["bench", name, "--running", *(["--json"] if as_json else [])]
            words += ["--rows", str(rows)] if rows else []
            done = stack.manage(*words, seconds_max=SECONDS_MAX)
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

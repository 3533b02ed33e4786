"""manage.py verify: check over the database that every rule holds that a query can check; an error exit if not."""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from kernel_project import verify


class Command(BaseCommand):
    help = "Check the invariants over the database. Changes nothing; exits with an error when one is broken."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")

    def handle(self, **options: Any) -> None:
        checks = verify.run()
        broken = [check.id for check in checks if not check.ok]
        if options["json"]:
            self.stdout.write(json.dumps({"ok": not broken, "checks": [check.as_json() for check in checks]}))
        else:
            for check in checks:
                verdict = "ok" if check.ok else f"BROKEN {check.count}"
                self.stdout.write(f"{verdict:<12}{check.id:<34}{check.rule}")
                self.stdout.write("".join(f"{'':<12}{example}\n" for example in check.examples), ending="")
        if broken:
            raise CommandError(f"broken: {', '.join(broken)}")

"""manage.py purge: delete what the retention of a project lets go, show what would go, set the rules."""

from __future__ import annotations

import getpass
import json
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from kernel_project.primitives.errors import KernelError
from outbox.contracts import Actor
from runs.keeping import purge, retention

FOR_EVER = "forever"


class Command(BaseCommand):
    help = "Delete what a project's retention lets go; nothing that is held, undelivered, parked, uncertain or waiting."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--project", default="", help="one project; without it all that have rules")
        parser.add_argument("--dry-run", action="store_true", help="count what would go, and delete nothing")
        parser.add_argument("--json", action="store_true")
        parser.add_argument("--set", action="append", default=[], metavar="CLASS=DAYS", help="or =forever; no purge")
        parser.add_argument("--rules", action="store_true", help="show the rules in force; no purge")
        parser.add_argument("--by", default="", help="who decides (default: your account on this machine)")

    def handle(self, *, project: str, **options: Any) -> None:
        by = Actor(id=options["by"] or getpass.getuser(), type="human")
        try:
            if options["set"]:
                found = retention.change(project=project, days=dict(map(_rule, options["set"])), by=by)
                return self._say(found, as_json=options["json"])
            if options["rules"]:
                return self._say(retention.rules(project), as_json=options["json"])
            for one in [project] if project else retention.projects():
                self._purge(one, by, dry_run=options["dry_run"], as_json=options["json"])
        except KernelError as error:
            raise CommandError(error.message) from None
        return None

    def _purge(self, project: str, by: Actor, *, dry_run: bool, as_json: bool) -> None:
        def progress(record_class: str, counts: Any) -> None:
            self.stderr.write(f"{project}: {record_class}: {sum(counts.values())} rows", ending="\r")

        receipt = purge.purge(project, by=by, dry_run=dry_run, progress=progress if not as_json else lambda *_: None)
        if as_json:
            told = {"project": project, "dry_run": dry_run, "deleted": receipt.counts, "holds": receipt.holds}
            self.stdout.write(json.dumps(told))
            return
        self.stdout.write(f"{project}: " + ("would go" if dry_run else "deleted"))
        for name, count in receipt.counts.items():
            self.stdout.write(f"{count:>12}  {name}")
        for hold in receipt.holds:
            self.stdout.write(f"{hold['ended_runs']:>12}  ended runs kept by hold {hold['hold']} on {hold['scope']}")

    def _say(self, rules: dict[str, int], *, as_json: bool) -> None:
        if as_json:
            self.stdout.write(json.dumps(rules))
            return
        for name in retention.CLASS.values:
            self.stdout.write(f"{name:<20}{rules[name]} days" if name in rules else f"{name:<20}for ever")


def _rule(text: str) -> tuple[str, int | None]:
    name, _, days = text.partition("=")
    if days == FOR_EVER:
        return name, None
    if not days.isascii() or not days.isdigit():
        raise CommandError(f"{text!r}: write CLASS=DAYS or CLASS={FOR_EVER}")
    return name, int(days)

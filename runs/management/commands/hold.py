"""manage.py hold: place, release and list legal holds."""

from __future__ import annotations

import getpass
import json
from typing import Any
from uuid import UUID

from django.core.management.base import BaseCommand, CommandError, CommandParser

from kernel_project.primitives.clock import wire_time
from kernel_project.primitives.errors import KernelError
from outbox.contracts import Actor
from runs.keeping import holds
from runs.models import Hold

LISTED_MAX = 1_000


class Command(BaseCommand):
    help = "Legal holds: what is held is deleted by nobody, on no path, until the hold is released."

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        place = verbs.add_parser("place", help="put a project, a run, an operation or an artifact on hold")
        place.add_argument("scope", choices=Hold.Scope.values)
        place.add_argument("target", nargs="?", default="", help="id or digest; none for the project itself")
        release = verbs.add_parser("release", help="end a hold; its record stays")
        release.add_argument("hold", type=UUID)
        for verb in (place, release):
            verb.add_argument("--project", required=True)
            verb.add_argument("--reason", required=True)
            verb.add_argument("--by", default="", help="who decides (default: your account on this machine)")
        lists = verbs.add_parser("list", help="the holds in force")
        lists.add_argument("--project", default="")
        lists.add_argument("--all", action="store_true", help="the released ones, too")
        lists.add_argument("--json", action="store_true")

    def handle(self, *, verb: str, **options: Any) -> None:
        if verb == "list":
            return self._list(options["project"], everything=options["all"], as_json=options["json"])
        by = Actor(id=options["by"] or getpass.getuser(), type="human")
        given = {"project": options["project"], "reason": options["reason"], "by": by}
        try:
            if verb == "place":
                hold = holds.place(scope=options["scope"], target=options["target"], **given)
            else:
                hold = holds.release(options["hold"], **given)
        except KernelError as error:
            raise CommandError(error.message) from None
        self.stdout.write(f"{hold.id}  {hold}  {'released' if hold.released_at else 'in force'}, by {by.id}")
        return None

    def _list(self, project: str, *, everything: bool, as_json: bool) -> None:
        found = Hold.objects.filter(project=project) if project else Hold.objects.all()
        found = found if everything else found.filter(released_at__isnull=True)
        shown = [_facts(hold) for hold in found.order_by("-id")[:LISTED_MAX]]
        if as_json:
            self.stdout.write(json.dumps(shown))
            return
        for facts in shown:
            self.stdout.write("  ".join(str(value) for value in facts.values() if value))
        self.stdout.write(f"{len(shown)} holds" + (" or more" if len(shown) == LISTED_MAX else ""))


def _facts(hold: Hold) -> dict[str, Any]:
    return {
        "id": str(hold.id),
        "project": hold.project,
        "scope": hold.scope,
        "target": hold.target,
        "placed_at": wire_time(hold.placed_at),
        "placed_by": hold.placed_by,
        "reason": hold.reason,
        "released_at": wire_time(hold.released_at) if hold.released_at else "",
        "released_by": hold.released_by,
        "release_reason": hold.release_reason,
    }

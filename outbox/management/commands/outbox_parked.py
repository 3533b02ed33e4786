"""manage.py outbox_parked: events that the event store refused for good; have them sent again, or give them up."""

from __future__ import annotations

import getpass
import json
from typing import Any
from uuid import UUID

from django.core.management.base import BaseCommand, CommandError, CommandParser

from kernel_project.primitives.clock import wire_time
from kernel_project.primitives.errors import KernelError
from outbox import parked
from outbox.contracts import Actor
from outbox.models import ParkedEvent

LISTED_MAX = 200
MANY_MAX = 1_000  # events that one `--all` takes


class Command(BaseCommand):
    help = "List parked events, have them sent again with the same bytes, or give them up."

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        lists = verbs.add_parser("list", help="the parked events, the oldest first")
        lists.add_argument("--json", action="store_true")
        for verb, text in (("replay", "have it sent again"), ("give-up", "say that it will never be delivered")):
            does = verbs.add_parser(verb, help=text)
            does.add_argument("event", nargs="?", type=UUID)
            does.add_argument("--all", action="store_true", help=f"every parked event, at most {MANY_MAX}")
            does.add_argument("--reason", default="", help="with --all: only those parked for it, as conflict")
            does.add_argument("--note", required=True, help="why")
            does.add_argument("--by", default="", help="who decides (default: your account on this machine)")

    def handle(self, *, verb: str, **options: Any) -> None:
        if verb == "list":
            return self._list(as_json=options["json"])
        decide = parked.replay if verb == "replay" else parked.give_up
        actor = Actor(id=options["by"] or getpass.getuser(), type="human")
        for event_id in _chosen(options["event"], every=options["all"], reason=options["reason"]):
            try:
                row = decide(event_id, by=actor, note=options["note"])
            except KernelError as error:
                raise CommandError(f"{event_id}: {error.message}") from error
            self.stdout.write(f"{event_id}  {row.get_state_display()}, by {actor.id}")
        return None

    def _list(self, *, as_json: bool) -> None:
        rows = ParkedEvent.objects.filter(state__in=ParkedEvent.OPEN).order_by("parked_at")[:LISTED_MAX]
        found = [_facts(row) for row in rows]
        if as_json:
            self.stdout.write(json.dumps(found))
            return
        for facts in found:
            self.stdout.write(_printable("  ".join(str(value) for value in facts.values())))
        self.stdout.write(f"{len(found)} parked" + (" or more" if len(found) == LISTED_MAX else ""))


def _chosen(event: UUID | None, *, every: bool, reason: str) -> list[UUID]:
    if event is not None and not every:
        return [event]
    if event is None and every:
        rows = ParkedEvent.objects.filter(state=ParkedEvent.State.PARKED).order_by("parked_at")
        rows = rows.filter(reason=reason) if reason else rows
        return list(rows.values_list("event_id", flat=True)[:MANY_MAX])
    raise CommandError("name one event, or --all")


def _facts(row: ParkedEvent) -> dict[str, Any]:
    return {
        "event_id": str(row.event_id),
        "run": str(row.run_id),
        "sequence": row.sequence,
        "state": row.state,
        "reason": row.reason,
        "attempts": row.attempts,
        "parked_at": wire_time(row.parked_at),
        "error": row.last_error,
    }


def _printable(text: str) -> str:
    """Text of the event store, fit for a terminal."""
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)

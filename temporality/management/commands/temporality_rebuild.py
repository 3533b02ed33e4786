"""Build the event store's projection anew beside the one that is read, compare the two, and swap them.

Ingest and reading go on meanwhile. Interrupted, the next call goes on where this one stopped.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

import psycopg
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from kernel_project.primitives.errors import KernelError
from temporality.projection import rebuild
from temporality.projection.projector import Connection
from temporality.store import database_url

BAR_CHARS = 40
BAR_SECONDS = 0.2  # between two drawings


class Command(BaseCommand):
    help = __doc__

    def add_arguments(self, parser: CommandParser) -> None:
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        parser.add_argument("--project", default="", help="only this project; default: all")
        parser.add_argument("--verify", action="store_true", help="compare only; exit 1 if the two differ")
        parser.add_argument("--abandon", action="store_true", help="give an unfinished rebuild up and end")
        parser.add_argument("--json", action="store_true", help="one JSON object instead of sentences")

    def handle(self, *args: Any, **options: Any) -> None:
        with psycopg.connect(database_url(settings.DATABASES), autocommit=True) as connection:
            if options["abandon"]:
                found = self._abandon(connection)
                self.stdout.write("the unfinished rebuild is gone" if found else "there was no unfinished rebuild")
                return
            self._rebuild(connection, options)

    def _abandon(self, connection: Connection) -> bool:
        try:
            return rebuild.abandon(connection)
        except KernelError as error:
            raise CommandError(error.message) from None

    def _rebuild(self, connection: Connection, options: dict[str, Any]) -> None:
        started = time.monotonic()
        bar = Bar() if sys.stderr.isatty() else None
        try:
            found = rebuild.rebuild(
                connection, project=options["project"], swap=not options["verify"], report=bar.show if bar else None
            )
        except KernelError as error:
            raise CommandError(error.message) from None
        seconds = time.monotonic() - started
        self._say(found, seconds, options["json"])
        if options["verify"] and not found.is_equal:
            sys.exit(1)

    def _say(self, found: rebuild.Rebuilt, seconds: float, as_json: bool) -> None:
        if as_json:
            members = {"events": found.events, "position": found.position, "seconds": round(seconds, 3)}
            digests = {"digest_before": found.digest_before, "digest_after": found.digest_after}
            self.stdout.write(json.dumps({**members, **digests, "equal": found.is_equal, "swapped": found.swapped}))
            return
        rate = found.events / seconds if seconds else 0
        self.stdout.write(f"{found.events} events up to position {found.position} in {seconds:.1f} s ({rate:.0f}/s)")
        self.stdout.write(f"digest before  {found.digest_before}")
        self.stdout.write(f"digest after   {found.digest_after}  {'equal' if found.is_equal else 'DIFFERENT'}")
        self.stdout.write("the new projection is read now" if found.swapped else "nothing was changed")


class Bar:
    """A progress bar on the terminal."""

    def __init__(self) -> None:
        self._drawn = 0.0

    def show(self, done: int, total: int) -> None:
        if time.monotonic() - self._drawn < BAR_SECONDS and done < total:
            return
        self._drawn = time.monotonic()
        share = done / total if total else 1.0
        filled = "#" * int(share * BAR_CHARS)
        print(f"\r[{filled:<{BAR_CHARS}}] {done}/{total} events", end="" if done < total else "\n", file=sys.stderr)

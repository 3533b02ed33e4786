"""manage.py rotate_artifact_keys: put all artifacts under the newest key of ARTIFACT_KEYS."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from kernel_project.primitives import keyring
from kernel_project.primitives.errors import Invalid
from runs.keeping import artifact_keys


class Command(BaseCommand):
    help = "Put all artifacts under the newest key of ARTIFACT_KEYS; one that was cut off is gone on with."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--new-key", action="store_true", help="print a fresh key and do nothing else")
        parser.add_argument(
            "--seconds", type=float, default=float("inf"), help="stop after so long; the next one goes on"
        )
        parser.add_argument("--json", action="store_true")

    def handle(self, *, new_key: bool, seconds: float, **options: Any) -> None:
        if new_key:
            self.stdout.write(keyring.new_key())
            return
        try:
            made = artifact_keys.rotate(seconds)
        except Invalid as error:
            raise CommandError(error.message) from None
        if options["json"]:
            self.stdout.write(json.dumps(asdict(made)))
        else:
            done = "all is under it" if made.complete and not made.failed else "not all is under it yet"
            self.stdout.write(f"key {made.key}: {made.bodies} bodies and {made.objects} objects sealed anew; {done}")
            self.stdout.writelines(
                f"  keep the key {key}: {calls} calls that are not over have secret arguments under it"
                for key, calls in made.words.items()
            )
            if not made.words_counted:
                self.stdout.write("  keep all keys: there are more calls with secret arguments than were looked at")
            self.stdout.writelines(f"  {problem}" for problem in made.problems)
        if made.failed:
            raise CommandError(f"{made.failed} could not be opened: keep the older keys")

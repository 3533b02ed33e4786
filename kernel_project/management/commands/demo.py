"""manage.py demo: the main job on real input, from a clone to a commit, with a killed worker in between."""

from __future__ import annotations

import time
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from kernel_project.devstack.api_client import NotAsPromised
from kernel_project.devstack.errors import DevstackError


class Command(BaseCommand):
    help = "Run the demo on the embedded stack; exits with an error when anything is not as it promises."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--repo", default="", metavar="PATH", help="git repository to report on; default: this one")
        parser.add_argument("--interactive", action="store_true", help="wait for you to approve in the admin")

    def handle(self, *, repo: str, interactive: bool, **options: Any) -> None:
        from kernel_project.demo import story

        began = time.monotonic()

        def say(line: str) -> None:
            self.stdout.write(f"{time.monotonic() - began:6.1f}s  {line}" if line else "")
            self.stdout.flush()

        try:
            wrong = story.run(repo, say, interactive=interactive)
        except (NotAsPromised, DevstackError) as error:
            raise CommandError(f"demo: failed: {error}") from error
        if wrong:
            raise CommandError("demo: not as promised: " + "; ".join(wrong))
        say("demo: ok")

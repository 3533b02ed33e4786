"""`manage.py create_api_key`: make a key of the JSON API and print it, once."""

from __future__ import annotations

import getpass
import os
from argparse import ArgumentParser
from datetime import datetime
from typing import Any

from django.contrib.auth import get_user_model
from django.core.management.base import BaseCommand, CommandError

from kernel_project.primitives.errors import KernelError
from kernel_project.web.callers import SCOPES
from runs import keys


class Command(BaseCommand):
    help = "Make an API key. It is printed once and cannot be shown again."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--project", required=True, help="the project's slug")
        parser.add_argument("--name", required=True, help="what the key is for")
        parser.add_argument("--scope", required=True, action="append", choices=SCOPES, help="may be repeated")
        parser.add_argument("--user", default="", help="the person behind the key, needed to decide and reconcile")
        parser.add_argument("--expires", default="", help="such as 2030-01-01T00:00:00Z")

    def handle(self, *_: Any, **options: Any) -> None:
        try:
            made = keys.create(
                project=options["project"],
                name=options["name"],
                scopes=options["scope"],
                user=_user(options["user"]),
                expires_at=_moment(options["expires"]),
                by=f"command by {_account()}",
            )
        except KernelError as error:
            raise CommandError(error.message) from None
        self.stdout.write(made[1])


def _account() -> str:
    """The account of the system that runs the command."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's number without a name
        return f"uid {os.getuid()}"


def _user(username: str) -> Any:
    if not username:
        return None
    found = get_user_model().objects.filter(username=username).first()
    if found is None:
        raise CommandError(f"there is no user {username!r}")
    return found


def _moment(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text) if text else None
    except ValueError:
        raise CommandError(f"{text!r} is not a time; write it as 2030-01-01T00:00:00Z") from None

"""Make, list and revoke the event store's bearer tokens. A secret is printed once, when it is made."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from kernel_project.primitives.errors import KernelError
from temporality import tokens
from temporality.models import Token


class Command(BaseCommand):
    help = __doc__

    def add_arguments(self, parser: CommandParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True)
        create = actions.add_parser("create", help="make a token and print its secret")
        ensure = actions.add_parser("ensure", help="let a token have a secret that somebody else made")
        for each in (create, ensure):
            each.add_argument("--name", required=True)
            each.add_argument("--role", choices=Token.Role.values, required=True)
            each.add_argument("--project", action="append", default=[], help="may be given several times")
            each.add_argument("--all-projects", action="store_true")
            each.add_argument("--source", action="append", default=[], help="only as this source; several times")
        secret = ensure.add_mutually_exclusive_group(required=True)
        secret.add_argument("--token-file", type=Path, help="a file that holds the secret")
        secret.add_argument("--token-env", help="an environment variable that holds it")
        actions.add_parser("list", help="names and rights, no secrets")
        actions.add_parser("revoke", help="end a token").add_argument("--name", required=True)

    def handle(self, *args: Any, action: str, **options: Any) -> None:
        try:
            getattr(self, f"_{action}")(options)
        except KernelError as error:
            raise CommandError(error.message) from None

    def _create(self, options: dict[str, Any]) -> None:
        self.stdout.write(tokens.create(**_right(options)))

    def _ensure(self, options: dict[str, Any]) -> None:
        changed = tokens.ensure(**_right(options), secret=_secret(options))
        self.stdout.write(f"token {options['name']}: {'set' if changed else 'as it was'}")

    def _list(self, options: dict[str, Any]) -> None:
        for token in Token.objects.order_by("name"):
            projects = "all projects" if token.all_projects else ", ".join(token.projects)
            sources = ", ".join(token.sources) or "any source"
            ended = f"revoked {token.revoked_at:%Y-%m-%d %H:%M}Z" if token.revoked_at else "valid"
            self.stdout.write(f"{token.name}  {token.role}  {projects}  {sources}  {ended}")

    def _revoke(self, options: dict[str, Any]) -> None:
        tokens.revoke(name=options["name"])
        self.stdout.write(f"token {options['name']}: revoked")


def _right(options: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": options["name"],
        "role": options["role"],
        "projects": options["project"],
        "all_projects": options["all_projects"],
        "sources": options["source"],
    }


def _secret(options: dict[str, Any]) -> str:
    if options["token_env"]:
        secret = os.environ.get(options["token_env"], "")
        where = f"the variable {options['token_env']}"
    else:
        secret = options["token_file"].read_text().strip() if options["token_file"].is_file() else ""
        where = f"the file {options['token_file']}"
    if not secret:
        raise CommandError(f"{where} holds no secret")
    return secret

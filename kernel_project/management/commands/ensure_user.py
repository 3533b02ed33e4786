"""manage.py ensure_user NAME: a staff account with groups and permissions, made once."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import Group, Permission, User
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import transaction


class Command(BaseCommand):
    help = "Make a staff user and put them into groups; an existing one keeps its password, which starts unusable."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name")
        parser.add_argument("--group", action="append", default=[], help="may be given several times")
        parser.add_argument("--permission", action="append", default=[], metavar="APP.CODENAME", help="likewise")

    @transaction.atomic
    def handle(self, *, name: str, group: list[str], permission: list[str], **options: Any) -> None:
        user, created = User.objects.get_or_create(username=name, defaults={"is_staff": True})
        if created:
            user.set_unusable_password()
            user.save(update_fields=["password"])
        for each in group:
            user.groups.add(Group.objects.get_or_create(name=each)[0])
        for each in permission:
            user.user_permissions.add(_permission(each))
        self.stdout.write(f"user {name} {'made' if created else 'kept'}")


def _permission(name: str) -> Permission:
    app, _, codename = name.partition(".")
    found = Permission.objects.filter(content_type__app_label=app, codename=codename).first()
    if found is None:
        raise CommandError(f"there is no permission {name!r}")
    return found

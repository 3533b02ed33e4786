"""manage.py ensure_user NAME --group GROUP: a staff account, made once."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import Group, User
from django.core.management.base import BaseCommand, CommandParser
from django.db import transaction


class Command(BaseCommand):
    help = "Make a staff user and put them into groups; an existing one keeps its password, which starts unusable."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name")
        parser.add_argument("--group", action="append", default=[], help="may be given several times")

    @transaction.atomic
    def handle(self, *, name: str, group: list[str], **options: Any) -> None:
        user, created = User.objects.get_or_create(username=name, defaults={"is_staff": True})
        if created:
            user.set_unusable_password()
            user.save(update_fields=["password"])
        for each in group:
            user.groups.add(Group.objects.get_or_create(name=each)[0])
        self.stdout.write(f"user {name} {'made' if created else 'kept'}")

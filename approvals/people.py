"""Which names are one person's. Four eyes are two people's, not two accounts'."""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Any

from django.contrib.auth.models import User
from django.db.models import Q
from django.db.models.functions import Lower

NAMES_MAX = 100  # accounts of one person that are looked at
# Who stands behind a name that is no person's, such as a key's: told by the apps above, which know such names.
STANDING_BEHIND: list[Callable[[str], Set[str]]] = []


def behind(name: str) -> frozenset[str]:
    """This name, and those of whoever acts through it."""
    return frozenset({name}).union(*(who(name) for who in STANDING_BEHIND))


def same_person(names: Set[str]) -> frozenset[str]:
    """These names, and those of all accounts that share an e-mail address with one of them, or differ in case only."""
    accounts = User.objects.annotate(mail=Lower("email"), plain=Lower("username"))
    mine = accounts.filter(plain__in=[name.lower() for name in names]).values_list("mail", flat=True)
    mails = {mail for mail in mine if mail}
    alike: Any = Q(plain__in=[name.lower() for name in names]) | Q(mail__in=mails)
    return frozenset(names) | frozenset(accounts.filter(alike).values_list("username", flat=True)[:NAMES_MAX])

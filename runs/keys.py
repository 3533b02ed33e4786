"""Keys of the JSON API: made, found, taken back. A key is shown once; only the hash of its secret is kept."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from datetime import datetime, timedelta
from hmac import compare_digest

from django.contrib.auth.models import User
from django.db.models import Q, QuerySet
from django.db.models.functions import Now

from kernel_project.primitives.canonical import sha256_hex
from kernel_project.primitives.clock import now
from kernel_project.primitives.errors import Invalid, NotFound
from kernel_project.web.callers import SCOPES
from runs.models import ApiKey, Project

SECRET_BYTES = 32  # 256 bits: no guessing, so a plain hash is enough
PREFIX_BYTES = 6  # names the key in lists and logs, and finds its row
TOKEN = re.compile(r"ak_([0-9a-f]{12})_([A-Za-z0-9_-]{43})", re.ASCII)
NAME_CHARS_MAX = 100
NAME_OF_KEY = "key:"  # how a key without a person is written down, with its prefix behind it
LAST_USE_STEP = timedelta(minutes=1)  # how exact "last used" is: one write per key and minute at most
# What a named person answers for.
PERSONAL_SCOPES = frozenset(
    {"approvals:decide", "approvals:break_glass", "operations:reconcile", "operations:compensate", "holds:write"}
)
NOBODY = sha256_hex(b"")  # compared with when there is no such key, so that both take the same time


def create(
    *,
    project: str,
    name: str,
    scopes: Sequence[str],
    user: User | None = None,
    expires_at: datetime | None = None,
    by: str = "",
) -> tuple[ApiKey, str]:
    """Make a key; returns its row and the key itself, which nobody can show again.

    A key with a user acts as that person and can do no more than the person may. `by` is who makes it; the database
    writes that into the audit record. Raises NotFound for an unknown project
    and Invalid for an unknown scope, a bad name, an expiry that is past, or a personal scope without a user.
    """
    _check(name, scopes, user, expires_at)
    if not Project.objects.filter(slug=project).exists():
        raise NotFound(f"there is no project {project!r}")
    prefix, secret = secrets.token_hex(PREFIX_BYTES), secrets.token_urlsafe(SECRET_BYTES)
    key = ApiKey.objects.create(
        project_id=project,
        name=name,
        user=user,
        scopes=sorted(set(scopes)),
        expires_at=expires_at,
        created_by=by,
        prefix=prefix,
        secret_hash=sha256_hex(secret.encode()),
    )
    return key, f"ak_{prefix}_{secret}"


def _check(name: str, scopes: Sequence[str], user: User | None, expires_at: datetime | None) -> None:
    if not name.strip() or len(name) > NAME_CHARS_MAX or not name.isprintable():
        raise Invalid(f"a key's name has 1 to {NAME_CHARS_MAX} printable characters")
    if unknown := sorted(set(scopes) - set(SCOPES)):
        raise Invalid(f"unknown scope {unknown[0]!r}; there are {', '.join(SCOPES)}")
    if not scopes:
        raise Invalid("a key needs at least one scope")
    if user is None and (personal := sorted(PERSONAL_SCOPES.intersection(scopes))):
        raise Invalid(f"{personal[0]} needs a person who answers for it: name the key's user")
    if expires_at is not None and (expires_at.tzinfo is None or expires_at <= now()):
        raise Invalid("the expiry must be a time to come, with its offset from UTC")


def find(token: str) -> ApiKey | None:
    """The usable key of this text, or None: unknown, wrong, expired and revoked are not told apart."""
    parts = TOKEN.fullmatch(token)
    prefix, secret = parts.groups() if parts else ("", "")
    key = _usable().select_related("user").filter(prefix=prefix).first()
    known = compare_digest(sha256_hex(secret.encode()), key.secret_hash if key else NOBODY)
    if key is None or not known:
        return None
    _note_use(key)
    return key


def _usable() -> QuerySet[ApiKey]:
    living = Q(expires_at__isnull=True) | Q(expires_at__gt=Now())
    acting = Q(user__isnull=True) | Q(user__is_active=True)
    return ApiKey.objects.filter(living, acting, revoked_at__isnull=True)


def _note_use(key: ApiKey) -> None:
    if key.last_used_at is None or now() - key.last_used_at > LAST_USE_STEP:
        unnoted = Q(last_used_at__isnull=True) | Q(last_used_at__lt=Now() - LAST_USE_STEP)
        ApiKey.objects.filter(unnoted, id=key.id).update(last_used_at=Now())


def revoke(key_id: int, *, by: str = "") -> bool:
    """Take a key back, at once and for ever; False if it was already."""
    return ApiKey.objects.filter(id=key_id, revoked_at__isnull=True).update(revoked_at=Now(), revoked_by=by) == 1


def people_behind(name: str) -> frozenset[str]:
    """Who made the key that is written down as `key:PREFIX`, and whom it acts for; nobody for other names."""
    if not name.lower().startswith(NAME_OF_KEY):
        return frozenset()
    made = ApiKey.objects.filter(prefix=name[len(NAME_OF_KEY) :].lower())
    pairs = made.values_list("created_by", "user__username")
    return frozenset(person for pair in pairs for person in pair if person)

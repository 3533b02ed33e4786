"""Who may write and read: bearer tokens, kept as hashes. A secret is shown once, when it is made."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from django.db import transaction
from django.utils import timezone

from kernel_project.primitives.errors import Conflict, Forbidden, Invalid, KernelError, NotFound
from temporality.envelope import Incoming
from temporality.models import Token
from temporality.sql import statement
from temporality.store import Store

SECRET_BYTES = 32  # 256 bits: the hash needs no salt and no slowness
SECRET_CHARS_MIN = 32  # of a secret that somebody else made
SECRET_CHARS_MAX = 512  # longer ones are refused before they are hashed
CACHE_SECONDS = 2.0  # for so long a revoked token may still be taken
CACHE_TOKENS_MAX = 10_000

Role = Literal["writer", "reader"]


class Unauthorized(KernelError):
    """No token, or none of ours."""

    code = "unauthorized"


@dataclass(frozen=True, slots=True)
class Grant:
    """What the bearer may do. `projects` is None for all, `sources` is None for any."""

    name: str
    role: str
    projects: frozenset[str] | None
    sources: frozenset[str] | None

    def check_write(self, events: Sequence[Incoming]) -> None:
        """Raises Forbidden if one of the events may not be written. One without a project is free."""
        if self.role != Token.Role.WRITER:
            raise Forbidden("this token may read, not write")
        for number, event in enumerate(events):
            if event.project and self.projects is not None and event.project not in self.projects:
                raise Forbidden(f"events[{number}]: this token may not write to that project")
            if self.sources is not None and event.source_id not in self.sources:
                raise Forbidden(f"events[{number}]: this token may not write as that source")

    def readable(self, project: str | None) -> list[str] | None:
        """The projects that a query may look at: the named one, else all of the token's; None for every event there is.

        Raises Forbidden for a project that is not the token's.
        """
        if not project:
            return None if self.projects is None else sorted(self.projects)
        if self.projects is not None and project not in self.projects:
            raise Forbidden("this token may not read that project")
        return [project]


class Bearers:
    """The tokens of this process' requests. A known one is looked up every CACHE_SECONDS, an unknown one each time."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._known: dict[bytes, tuple[float, Grant]] = {}

    async def grant(self, authorization: str) -> Grant:
        """The right behind an Authorization header. Raises Unauthorized."""
        scheme, _, secret = authorization.partition(" ")
        if scheme.lower() != "bearer" or not secret.isascii() or not 0 < len(secret) <= SECRET_CHARS_MAX:
            raise Unauthorized("a valid bearer token is required")
        key = hash_of(secret)
        until, grant = self._known.get(key, (0.0, None))
        if grant is None or until < time.monotonic():
            grant = await self._look_up(key)
        return grant

    async def _look_up(self, key: bytes) -> Grant:
        async with self.store.read() as connection:
            row = await (await connection.execute(statement("find_token"), {"token_hash": key})).fetchone()
        if row is None:
            self._known.pop(key, None)
            raise Unauthorized("a valid bearer token is required")
        name, role, all_projects, projects, sources = row
        grant = Grant(name, role, None if all_projects else frozenset(projects), frozenset(sources) or None)
        if len(self._known) >= CACHE_TOKENS_MAX:
            self._known.clear()
        self._known[key] = (time.monotonic() + CACHE_SECONDS, grant)
        return grant


def hash_of(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


def create(
    *,
    name: str,
    role: Role,
    projects: Sequence[str] = (),
    all_projects: bool = False,
    sources: Sequence[str] = (),
    secret: str = "",
) -> str:
    """Make a token and return its secret, which is not kept.

    Raises Invalid for a token without projects or a given secret that is too short, Conflict if the name is taken.
    """
    if not all_projects and not projects:
        raise Invalid("a token needs projects, or all of them")
    if secret and not SECRET_CHARS_MIN <= len(secret) <= SECRET_CHARS_MAX:
        raise Invalid(f"a token's secret has {SECRET_CHARS_MIN} to {SECRET_CHARS_MAX} characters")
    secret = secret or secrets.token_urlsafe(SECRET_BYTES)
    _, made = Token.objects.get_or_create(
        name=name,
        defaults={
            "token_hash": hash_of(secret),
            "role": role,
            "all_projects": all_projects,
            "projects": list(projects),
            "sources": list(sources),
            "created_at": timezone.now(),
        },
    )
    if not made:
        raise Conflict(f"there is a token named {name}")
    return secret


@transaction.atomic(using="temporality")
def ensure(
    *,
    name: str,
    role: Role,
    secret: str,
    projects: Sequence[str] = (),
    all_projects: bool = False,
    sources: Sequence[str] = (),
) -> bool:
    """Let the token of this name have this secret and this right. Returns false if it did already."""
    right = {"role": role, "all_projects": all_projects, "projects": list(projects), "sources": list(sources)}
    held = Token.objects.select_for_update().filter(name=name, revoked_at=None).first()
    if held and bytes(held.token_hash) == hash_of(secret) and all(getattr(held, k) == v for k, v in right.items()):
        return False
    Token.objects.filter(name=name).delete()
    create(name=name, secret=secret, role=role, projects=projects, all_projects=all_projects, sources=sources)
    return True


def revoke(*, name: str) -> None:
    """End a token; servers notice within CACHE_SECONDS. Raises NotFound."""
    if not Token.objects.filter(name=name, revoked_at=None).update(revoked_at=timezone.now()):
        raise NotFound(f"there is no token named {name} that could be revoked")

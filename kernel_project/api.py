"""The JSON API: its routers, and how a caller is known. The rest of its conventions is in `kernel_project/web`."""

from __future__ import annotations

from django.contrib.auth.base_user import AbstractBaseUser
from django.contrib.auth.models import AbstractUser, AnonymousUser
from django.http import HttpRequest
from ninja.utils import check_csrf

import approvals.api
import outbox.api
import runs.api
from kernel_project.primitives.errors import Forbidden, NotFound
from kernel_project.web.callers import PERMISSIONS, Caller, identify_with
from kernel_project.web.kernel_api import KernelApi
from kernel_project.web.problems import Unauthenticated, mistake, not_readable
from runs import keys
from runs.models import ApiKey, Project

SCHEME = "bearer"


def identify(request: HttpRequest) -> Caller:
    """Who is asking: the owner of the key, or else the person who is logged in. Never what the body says."""
    header = request.headers.get("Authorization")
    return _by_session(request) if header is None else _by_key(request, header)


def _by_key(request: HttpRequest, header: str) -> Caller:
    scheme, _, token = header.partition(" ")
    key = keys.find(token.strip()) if scheme.lower() == SCHEME else None
    if key is None:
        raise Unauthenticated("a valid API key is needed: Authorization: Bearer ak_…")
    if request.GET.get("project", key.project_id) != key.project_id:
        raise NotFound("there is no such project")
    own = f"key:{key.prefix}"
    if key.user is None:
        scopes = frozenset(key.scopes)
        return Caller(project=key.project_id, name=own, names=frozenset({own}), scopes=scopes, counted_as=own)
    return _person(key.user, key.project_id, frozenset(key.scopes), counted_as=own, key=key)


def _by_session(request: HttpRequest) -> Caller:
    user: AbstractBaseUser | AnonymousUser = request.user
    if not isinstance(user, AbstractUser) or not user.is_active or not user.is_staff:
        raise Unauthenticated("log in, or send an API key: Authorization: Bearer ak_…")
    if check_csrf(request) is not None:
        raise Forbidden("send the CSRF token of the session as X-CSRFToken", code="csrf_failed")
    project = request.GET.get("project", "")
    if not project:
        raise not_readable([mistake("query", "project", "say which project: ?project=SLUG")])
    if "\x00" in project or not Project.objects.filter(slug=project).exists():
        raise NotFound("there is no such project")
    return _person(user, project, frozenset(PERMISSIONS), counted_as=f"user:{user.pk}")


def _person(
    user: AbstractUser, project: str, scopes: frozenset[str], *, counted_as: str, key: ApiKey | None = None
) -> Caller:
    allowed = frozenset(scope for scope, permission in PERMISSIONS.items() if user.has_perm(permission))
    name = user.get_username()
    return Caller(
        project=project,
        name=name,
        names=frozenset({name, f"key:{key.prefix}"} if key else {name}),
        scopes=scopes & allowed,
        counted_as=counted_as,
        groups=frozenset(user.groups.values_list("name", flat=True)),
        superuser=user.is_superuser,
        person=True,
    )


identify_with(identify)
api = KernelApi(
    title="Agent Kernel",
    version="1",
    urls_namespace="api-v1",
    description="Start and follow runs, decide approvals, settle uncertain operations. See docs/api.md.",
)
for router in (*runs.api.routers, approvals.api.router, outbox.api.router):
    api.add_router("", router)

"""Who is asking, and what a route needs of them. How a caller is found is the roof's business."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

from django.http import HttpRequest

from kernel_project.primitives.errors import Forbidden
from kernel_project.web import rate_limit

ScopeName = Literal[
    "runs:start", "runs:read", "runs:cancel", "runs:resume", "runs:message", "approvals:read", "approvals:decide",
    "approvals:break_glass", "operations:read",
    "operations:reconcile", "operations:compensate", "artifacts:read", "holds:read", "holds:write",
    "lag:read",
]  # fmt: skip
SCOPES: tuple[ScopeName, ...] = get_args(ScopeName)
# What a person must be allowed in the admin, to do the same here. A key of a person can do no more than the person.
PERMISSIONS: dict[ScopeName, str] = {
    "runs:start": "runs.start_run",
    "runs:read": "runs.view_run",
    "runs:cancel": "runs.cancel_run",
    "runs:resume": "runs.resume_run",
    "runs:message": "runs.message_run",
    "approvals:read": "approvals.view_approval",
    "approvals:decide": "approvals.decide_approval",
    "approvals:break_glass": "approvals.break_glass_approval",
    "operations:read": "runs.view_operation",
    "operations:reconcile": "runs.reconcile_operation",
    "operations:compensate": "runs.compensate_operation",
    "artifacts:read": "runs.view_artifact",
    "holds:read": "runs.view_hold",
    "holds:write": "runs.place_hold",
    "lag:read": "outbox.view_stream",
}


@dataclass(frozen=True)
class Caller:
    """An authenticated caller, for one project.

    `name` is what is written down: the person's user name, or `key:PREFIX` of a key that no person stands behind.
    `names` are all identities of the caller. `scopes` are what it may do here, the person's permissions included.
    `counted_as` is whose budget of requests it uses.
    """

    project: str
    name: str
    scopes: frozenset[str]
    counted_as: str
    names: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()
    superuser: bool = False
    person: bool = False

    def check(self, scope: ScopeName) -> None:
        """Raise Forbidden unless the caller has the scope."""
        if scope not in self.scopes:
            raise Forbidden(f"this needs the scope {scope}", code="missing_scope", scope=scope)


Identify = Callable[[HttpRequest], Caller]
_identify: list[Identify] = []  # filled once by the roof: keys belong to an app that this code must not see


def identify_with(identify: Identify) -> None:
    """Say how the caller of a request is found. `identify` raises Unauthenticated when there is none."""
    _identify[:] = [identify]


class Needs:
    """A route's `auth`: a known caller with this scope. Raises Unauthenticated or Forbidden."""

    def __init__(self, scope: ScopeName) -> None:
        self.scope = scope

    def __call__(self, request: HttpRequest) -> Caller:
        [identify] = _identify
        caller = identify(request)
        rate_limit.take(caller.counted_as)
        caller.check(self.scope)
        return caller


def caller_of(request: HttpRequest) -> Caller:
    """The caller that the route's `Needs` found."""
    caller = getattr(request, "auth", None)
    assert isinstance(caller, Caller), "the route has no auth"
    return caller

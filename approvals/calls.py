"""What approvals ask of the app that owns the calls. It says who that is at the start; nothing here knows the app."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID

from approvals.contracts import AnswerName, Call, Request
from approvals.models import Approval

# Rewrites the call inside the transaction that supersedes its request, and says what the new request is about.
Rewrite = Callable[[Approval], Request]


@dataclass(frozen=True)
class PastCall:
    """A call that policy has judged, and how."""

    operation_id: UUID
    at: datetime
    call: Call
    answer: AnswerName
    policy: str


class Calls(Protocol):
    """The app that owns the calls."""

    def edited(self, approval: Approval, arguments: Any, by: str) -> Rewrite:
        """Check other arguments for the call of a request, before any transaction is open.

        Raises Invalid for arguments that do not fit the tool, Conflict for a call that policy denies with them, that
        was made before, or whose tool is gone.
        """

    def arguments(self, approval: Approval) -> Any:
        """What a person would edit: the arguments without what the kernel itself has written into them."""

    def past(self, project: str, limit: int) -> Iterator[PastCall]:
        """Calls of a project as they were judged, the newest first."""


_owner: list[Calls] = []  # filled once, when the apps are ready


def owned_by(calls: Calls) -> None:
    """Say who owns the calls."""
    _owner[:] = [calls]


def owner() -> Calls:
    [calls] = _owner
    return calls

"""Read approvals. Writes and locks nothing."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from approvals.models import Approval


def granted_binding(operation_id: UUID) -> str | None:
    """The stored text that a person said yes to, or None when there is no yes."""
    granted = Approval.objects.filter(operation_id=operation_id, state=Approval.State.GRANTED)
    found: str | None = granted.values_list("binding", flat=True).first()
    return found


def standing(operation_id: UUID) -> tuple[bool, datetime | None]:
    """Whether a yes is there, and until when one may come while it is not."""
    approval = Approval.objects.get(operation_id=operation_id)
    granted = approval.state == Approval.State.GRANTED
    return granted, None if granted else approval.deadline_at

"""Read approvals. Writes and locks nothing."""

from __future__ import annotations

from uuid import UUID

from approvals.models import Approval


def granted_binding(operation_id: UUID) -> str | None:
    """The stored text that a person said yes to, or None when there is no yes."""
    granted = Approval.objects.filter(operation_id=operation_id, state=Approval.State.GRANTED)
    found: str | None = granted.values_list("binding", flat=True).first()
    return found

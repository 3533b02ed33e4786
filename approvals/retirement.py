"""Take a rule out of force. The version stays, for it stands under decisions."""

from __future__ import annotations

from uuid import UUID

from django.db.models.functions import Now

from approvals.models import Policy


def retire(policy_id: UUID) -> bool:
    """Retire one version, at once; False if it was retired before."""
    return Policy.objects.filter(id=policy_id, retired_at__isnull=True).update(retired_at=Now()) == 1

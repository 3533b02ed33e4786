"""Which generation of the projection is read now, for whoever looks into its tables with the ORM."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet

from temporality.models import Projector


def live() -> QuerySet[Projector, Any]:
    """The generation that is read now, as a subquery."""
    return Projector.objects.filter(state=Projector.State.LIVE).values("generation")[:1]

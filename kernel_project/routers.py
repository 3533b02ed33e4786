"""The event store keeps its own database; nothing else goes there."""

from __future__ import annotations

from typing import Any

from django.db.models import Model

TEMPORALITY = "temporality"


class TemporalityRouter:
    """Send the `temporality` app to the database of that name, and every other app to `default`."""

    def db_for_read(self, model: type[Model], **hints: Any) -> str | None:
        return TEMPORALITY if model._meta.app_label == TEMPORALITY else None

    db_for_write = db_for_read

    def allow_relation(self, one: Model, other: Model, **hints: Any) -> bool | None:
        return (one._meta.app_label == TEMPORALITY) == (other._meta.app_label == TEMPORALITY) or None

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool | None:
        return (db == TEMPORALITY) == (app_label == TEMPORALITY)

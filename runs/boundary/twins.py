"""Calls that are the same call: what `unique_by` and the repeat guard compare. Reads only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal
from uuid import UUID

from django.db import connection
from django.db.models import Q
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kernel_project.primitives.canonical import canonical_bytes, sha256_hex
from runs.models import Operation, Tombstone

STATE = Operation.State
UNCLEAR = (STATE.DISPATCHED, STATE.UNCERTAIN)
MAY_STILL_LEAVE = (STATE.PROPOSED, STATE.AWAITING_APPROVAL)
PATHS_MAX = 10

Path = Annotated[str, Field(min_length=1, max_length=200)]


class Uniqueness(BaseModel):
    """The part of a tool's configuration that says when two of its calls are one and the same intention."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    unique_by: Annotated[tuple[Path, ...], Field(max_length=PATHS_MAX)] = ()
    on_twin: Literal["refuse", "approve"] = "refuse"


def uniqueness(configuration: Mapping[str, Any]) -> Uniqueness:
    """What the configuration declares. Raises ValueError, with a sentence, for a declaration that cannot be read."""
    try:
        return Uniqueness.model_validate(configuration)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ValueError(f"the tool's configuration cannot be read: {where}: {first['msg']}") from None


def unique_key(tool: str, paths: tuple[str, ...], arguments: Mapping[str, Any]) -> str:
    """The hash of the values at these paths (`order.id`); an absent one counts as null. Empty when all are absent."""
    values = [_at(arguments, path) for path in paths]
    if all(value is None for value in values):
        return ""
    return sha256_hex(canonical_bytes([tool, *values]))


def _at(arguments: Mapping[str, Any], path: str) -> Any:
    value: Any = arguments
    for part in path.split("."):
        if not isinstance(value, Mapping):
            return None
        value = value.get(part)
    return value


def lock_keys(keys: set[str]) -> None:
    """Until the transaction ends, nobody else looks for, or writes, operations with these unique keys."""
    with connection.cursor() as cursor:
        for key in sorted(keys):
            cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [key])


def earlier(operation: Operation) -> UUID | None:
    """An operation with the same unique key that was dispatched, whatever became of it, or that may still be."""
    others = Operation.objects.filter(project_id=operation.project_id, unique_key=operation.unique_key)
    left = others.filter(Q(attempt__gte=1) | Q(state__in=MAY_STILL_LEAVE)).exclude(id=operation.id)
    found: UUID | None = left.order_by("proposed_at").values_list("id", flat=True).first()
    return found or _purged(operation)


def _purged(operation: Operation) -> UUID | None:
    """The same among what was purged: of those calls a tombstone is left."""
    buried = Tombstone.objects.filter(project=operation.project_id, unique_key=operation.unique_key)
    found: UUID | None = buried.exclude(unique_key="").values_list("operation_id", flat=True).first()
    return found


def unclear(operation: Operation) -> Operation | None:
    """Another operation that makes the same call and is out, or whose effect is not known."""
    same = Operation.objects.filter(
        project_id=operation.project_id, name=operation.name, call_digest=operation.call_digest, state__in=UNCLEAR
    )
    return same.exclude(id=operation.id).first()

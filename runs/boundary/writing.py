"""New operations as statements take them: many rows in one JSON text, so that a turn is written in one go."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache

from django.core.serializers.json import DjangoJSONEncoder
from django.db.models.fields import NOT_PROVIDED
from psycopg.sql import SQL, Composable, Identifier

from runs.models import Operation


@cache
def columns() -> Composable:
    """The columns that a writer names; the database fills the others itself, also one that a later version adds."""
    return SQL(", ").join(Identifier(name) for name in _names())


def as_json(operations: Sequence[Operation]) -> str:
    """The rows, in the order given."""
    names = _names()
    return json.dumps([{name: getattr(one, name) for name in names} for one in operations], cls=DjangoJSONEncoder)


@cache
def _names() -> tuple[str, ...]:
    fields = Operation._meta.concrete_fields
    return tuple(field.attname for field in fields if field.db_default is NOT_PROVIDED)

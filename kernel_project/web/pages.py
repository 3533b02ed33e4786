"""Cursor pages: a position instead of a number, so that a page costs the same however deep it is."""

from __future__ import annotations

import base64
import binascii
import json
import logging
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from django.db import DataError, models
from pydantic import BaseModel, ConfigDict, Field

from kernel_project.web.fields import QueryInteger
from kernel_project.web.problems import mistake, not_readable

logger = logging.getLogger(__name__)

PAGE_DEFAULT = 50
PAGE_MAX = 200
CURSOR_CHARS_MAX = 300

Item = TypeVar("Item")
Row = TypeVar("Row", bound=models.Model)


class PageQuery(BaseModel):
    """Which page is asked for."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    limit: QueryInteger = Field(default=PAGE_DEFAULT, ge=1, le=PAGE_MAX)
    cursor: str = Field(default="", max_length=CURSOR_CHARS_MAX, description="`next` of the page before.")


class Page(BaseModel, Generic[Item]):
    """Items and how to go on. `unreadable` are rows of this page that cannot be shown."""

    model_config = ConfigDict(frozen=True)

    items: list[Item]
    next: str | None = Field(description="Give it as `cursor`; null on the last page.")
    unreadable: list[str] = Field(default_factory=list, description="Ids.")


def encode(position: Sequence[str | int]) -> str:
    """A position as opaque text."""
    return base64.urlsafe_b64encode(json.dumps(position, separators=(",", ":")).encode()).decode().rstrip("=")


def decode(cursor: str, read: Callable[[list[Any]], Item]) -> Item:
    """What `read` makes of the position. Raises NotReadable for text that is no cursor of ours."""
    try:
        text = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        return read(json.loads(text))
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError, binascii.Error):
        raise not_readable([mistake("query", "cursor", "this is not a cursor of this list")]) from None


def page(
    found: models.QuerySet[Row],
    limit: int,
    show: Callable[[Row], Item],
    position: Callable[[Row], Sequence[str | int]],
) -> Page[Item]:
    """One page of ordered rows, each as `show` makes it.

    One bad row (a time that Python cannot hold, a state that nobody knows) must not take the whole list away: it is
    named in `unreadable`, the others are shown.
    """
    loaded, unreadable, more = _load(found, limit)
    items: list[Item] = []
    for row in loaded:
        try:
            items.append(show(row))
        except (ValueError, LookupError, TypeError):
            logger.warning("%s %s cannot be shown", type(row).__name__, row.pk)
            unreadable.append(str(row.pk))
    following = encode(position(loaded[-1])) if more and loaded else None
    return Page(items=items, next=following, unreadable=unreadable)


def _load(found: models.QuerySet[Row], limit: int) -> tuple[list[Row], list[str], bool]:
    try:
        rows = list(found[: limit + 1])
    except (DataError, ValueError):
        return _load_one_by_one(found, limit)
    return rows[:limit], [], len(rows) > limit


def _load_one_by_one(found: models.QuerySet[Row], limit: int) -> tuple[list[Row], list[str], bool]:
    ids = list(found.values_list("pk", flat=True)[: limit + 1])
    readable: list[Row] = []
    unreadable: list[str] = []
    for pk in ids[:limit]:
        try:
            readable.append(found.get(pk=pk))
        except (DataError, ValueError):
            unreadable.append(str(pk))
    return readable, unreadable, len(ids) > limit


def small(value: Any) -> int:
    """A number of a cursor's position; raises ValueError for what no column could hold."""
    if type(value) is not int or not 0 <= value < 2**31:
        raise ValueError(value)
    return value

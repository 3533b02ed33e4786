"""Query strings and cursors of the reading API: strict, and never trusted."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from datetime import datetime
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from kernel_project.primitives.errors import Invalid
from temporality.contracts import READ_LIMIT_DEFAULT, READ_LIMIT_MAX, format_time, parse_time

PARAMETERS_MAX = 500  # of one request; a progress request names many runs
POSITION_MAX = 2**63 - 1
CHECK_CHARS = 8  # of a hash: tells a cursor of ours from a damaged one; it guards nothing

BAD_CURSOR = "cursor is not one that this server gave"
DIGITS = re.compile(r"[0-9]{1,20}")


class BadQuery(Invalid):
    """A parameter is wrong (HTTP 400)."""

    code = "bad_query"


class Query:
    """The parameters of one request. An empty value is as good as none."""

    def __init__(self, raw: bytes) -> None:
        self._values: dict[str, list[str]] = {}
        for name, value in _pairs(raw):
            if "\0" in value or "\0" in name:
                raise BadQuery("parameters must not contain a NUL character")
            if value:
                self._values.setdefault(name, []).append(value)

    def text(self, name: str) -> str | None:
        """The one value. Raises BadQuery if it is given twice."""
        values = self._values.get(name, [])
        if len(values) > 1:
            raise BadQuery(f"{name} is given more than once")
        return values[0] if values else None

    def needed(self, name: str) -> str:
        value = self.text(name)
        if value is None:
            raise BadQuery(f"{name} is required")
        return value

    def texts(self, name: str, count_max: int) -> list[str]:
        """All values, each once."""
        values = list(dict.fromkeys(self._values.get(name, [])))
        if len(values) > count_max:
            raise BadQuery(f"{name} is given more than {count_max} times")
        return values

    def time(self, name: str) -> datetime | None:
        value = self.text(name)
        try:
            return None if value is None else parse_time(value)
        except ValueError as error:
            raise BadQuery(f"{name} {error}") from None

    def limit(self) -> int:
        return self._number("limit", 1, READ_LIMIT_MAX) or READ_LIMIT_DEFAULT

    def position(self) -> int | None:
        return self._number("after_position", 0, POSITION_MAX)

    def _number(self, name: str, least: int, most: int) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        if not DIGITS.fullmatch(value) or not least <= int(value) <= most:
            raise BadQuery(f"{name} must be a whole number from {least} to {most}")
        return int(value)


def _pairs(raw: bytes) -> list[tuple[str, str]]:
    try:
        return parse_qsl(raw.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=PARAMETERS_MAX)
    except UnicodeDecodeError:
        raise BadQuery("the query must be percent-encoded UTF-8") from None
    except ValueError:
        raise BadQuery(f"the query has more than {PARAMETERS_MAX} parameters") from None


class Place(NamedTuple):
    """Where an event stands in the order of reading."""

    occurred_at: datetime
    received_at: datetime
    source_id: str
    event_id: str


def write_cursor(*marks: str | int) -> str:
    """A text that names a place in an order; to be handed back as it is."""
    body = json.dumps(marks, separators=(",", ":"))
    return base64.urlsafe_b64encode(f"{_check(body)}{body}".encode()).decode().rstrip("=")


def read_cursor(cursor: str, *kinds: type) -> list[Any]:
    """The marks of a cursor, which are of these kinds. Raises BadQuery for what this server did not write."""
    try:
        if not cursor.isascii():
            raise ValueError(cursor)
        text = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True).decode()
        check, body = text[:CHECK_CHARS], text[CHECK_CHARS:]
        marks = json.loads(body) if check == _check(body) else None
        if not isinstance(marks, list) or tuple(map(type, marks)) != kinds or not all(map(_can_be_asked, marks)):
            raise ValueError(body)
        return marks
    except (ValueError, RecursionError):
        raise BadQuery(BAD_CURSOR) from None


def _can_be_asked(mark: Any) -> bool:
    """The database takes it as a parameter: the check is no secret, so a cursor may say anything."""
    if isinstance(mark, int):
        return 0 <= mark <= POSITION_MAX
    mark.encode()  # half a surrogate pair is a ValueError
    return "\0" not in mark


def read_mark_time(text: str) -> datetime:
    """A time in a cursor. Raises BadQuery."""
    try:
        return parse_time(text)
    except ValueError:
        raise BadQuery(BAD_CURSOR) from None


def write_place(place: Place) -> str:
    return write_cursor(format_time(place.occurred_at), format_time(place.received_at), place.source_id, place.event_id)


def read_place(cursor: str) -> Place:
    occurred_at, received_at, source_id, event_id = read_cursor(cursor, str, str, str, str)
    return Place(read_mark_time(occurred_at), read_mark_time(received_at), source_id, event_id)


def _check(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()[:CHECK_CHARS]

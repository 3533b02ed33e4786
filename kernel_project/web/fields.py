"""Types of members of requests and answers: one form for times, no number that is not exactly one."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, WithJsonSchema

from kernel_project.primitives.clock import wire_time

MOMENT = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d{1,6})?([Zz]|[+-]\d\d:\d\d)", re.ASCII)
INTEGER = re.compile(r"-?\d{1,19}", re.ASCII)
INTEGER_MAX = 2**63 - 1
NO_NUL_PATTERN = r"^[^\u0000]*$"


def _moment(text: Any) -> datetime:
    if not isinstance(text, str) or not MOMENT.fullmatch(text):
        raise ValueError("a time is written as 2030-01-01T12:00:00Z or with another offset, never without one")
    try:
        return datetime.fromisoformat(text.upper()).astimezone(UTC)
    except (ValueError, OverflowError):
        raise ValueError("there is no such time") from None


def _integer(text: Any) -> int:
    if isinstance(text, int):
        return text  # a default
    if not isinstance(text, str) or not INTEGER.fullmatch(text):
        raise ValueError("a whole number in decimal digits is wanted")
    return int(text)


def _no_nul(text: str) -> str:
    if "\x00" in text:
        raise ValueError("the text holds a NUL character")
    return text


# A time in a query: RFC 3339 with an offset, kept in UTC.
QueryTime = Annotated[datetime, BeforeValidator(_moment), WithJsonSchema({"type": "string", "format": "date-time"})]
# A whole number in a query: digits only, none of the other spellings that Python would take.
QueryInteger = Annotated[int, BeforeValidator(_integer)]
# The same for the number of an event. The limits stand at the integer itself, or the document would not know them.
QuerySequence = Annotated[int, Field(ge=0, le=INTEGER_MAX), BeforeValidator(_integer)]
# Text of a request. PostgreSQL holds no NUL; the document says so, too.
Text = Annotated[str, AfterValidator(_no_nul), Field(json_schema_extra={"pattern": NO_NUL_PATTERN})]
# A time in an answer.
WireTime = Annotated[
    datetime,
    PlainSerializer(wire_time, return_type=str),
    WithJsonSchema({"type": "string", "format": "date-time"}, mode="serialization"),
]

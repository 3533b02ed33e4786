"""The quick way into the store: batches whose text is canonical already, as our own publisher sends them.

Whatever this module is not sure of it leaves to the strict way of `envelope`, which also words the refusal. It never
lets in what that one would refuse, and never changes a text.
"""

from __future__ import annotations

import json
import json.encoder
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

from pydantic_core import SchemaValidator, core_schema, from_json

from kernel_project.primitives.canonical import DEPTH_MAX
from temporality.contracts import FILLED, ID_CHARS_MAX, NAME_CHARS_MAX, SCHEMA, TEXT_CHARS_MAX

OPENING: Final = '{"events":['
CLOSING: Final = "]}"
# Numbers that Python writes in another form than RFC 8785: 1.0 and 1e+16. In a text they look like it, and do no harm.
WHOLE_FLOAT: Final = re.compile(rb"\.0[,\]}]")
EXPONENT: Final = re.compile(rb"e[-+][0-9]+[,\]}]")
ASTRAL: Final = re.compile("[\U00010000-\U0010ffff]")  # keys with these sort otherwise in UTF-16 than in Python
TIME_CHARS: Final = len("2025-03-01T10:00:00.000000Z")

_ENCODER = json.JSONEncoder(ensure_ascii=False, check_circular=False, sort_keys=True, separators=(",", ":"))


def _writer() -> Callable[[Any], str]:
    """`_ENCODER.encode`, which makes a new C encoder for each call, at twice the price of its work."""
    make = json.encoder.c_make_encoder  # type: ignore[attr-defined]
    if make is None:
        return _ENCODER.encode
    write = make(None, _ENCODER.default, json.encoder.encode_basestring, None, ":", ",", True, False, False)
    return lambda value: "".join(write(value, 0))


canonical_text = _writer()
"""The text of a JSON value with sorted members, as `canonical_json` writes it for values that it calls plain."""


def canonical_texts(body: bytes) -> list[tuple[Any, str]] | None:
    """The values of a batch's events and their texts, if the whole body is canonical JSON; None if not.

    That the texts written from the values are the body again proves that nothing was given twice or written otherwise.
    """
    if WHOLE_FLOAT.search(body) or EXPONENT.search(body):
        return None
    try:
        batch = from_json(body, allow_inf_nan=False, cache_strings="keys")
        events = batch["events"]
        texts = list(map(canonical_text, events))
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    text = OPENING + ",".join(texts) + CLOSING
    if len(batch) != 1 or type(events) is not list or text.encode() != body or not all(map(_is_flat, texts)):
        return None
    if not text.isascii() and ASTRAL.search(text):
        return None
    return list(zip(events, texts, strict=True))


def _is_flat(text: str) -> bool:
    """So few brackets cannot nest deeply."""
    return text.count("{") + text.count("[") <= DEPTH_MAX


def is_canonical_event(value: Any) -> bool:
    """A valid event in which nothing is empty, null or in need of another form: its content is the value itself."""
    return EVENT.isinstance_python(value) and _has_filled_context(value) and _is_canonical_time(value["occurred_at"])


def _has_filled_context(event: Any) -> bool:
    """Objects whose members are all optional may be empty: then they are absent from the content."""
    return "context" not in event or (event["context"] != {} and event["context"].get("actor") != {})


def _is_canonical_time(text: str) -> bool:
    if len(text) != TIME_CHARS or text[-1] != "Z":
        return False
    try:
        return datetime.fromisoformat(text[:-1]).isoformat(timespec="microseconds") == text[:-1]
    except ValueError:
        return False


def _text(chars_max: int) -> core_schema.CoreSchema:
    return core_schema.str_schema(min_length=1, max_length=chars_max, pattern=FILLED)


def _object(
    needed: Mapping[str, core_schema.CoreSchema], optional: Mapping[str, core_schema.CoreSchema]
) -> core_schema.CoreSchema:
    members = {name: core_schema.typed_dict_field(schema, required=True) for name, schema in needed.items()}
    members |= {name: core_schema.typed_dict_field(schema, required=False) for name, schema in optional.items()}
    return core_schema.typed_dict_schema(members, extra_behavior="forbid", strict=True)


_NAME, _ID, _TEXT = _text(NAME_CHARS_MAX), _text(ID_CHARS_MAX), _text(TEXT_CHARS_MAX)
_ACTOR = _object({}, {"id": _ID, "type": core_schema.literal_schema(["agent", "human", "system", "service"])})
_CONTEXT = _object({}, {"project": _NAME, "run": _ID, "task": _ID, "parent_event_id": _ID, "actor": _ACTOR})
EVENT: Final = SchemaValidator(
    _object(
        {
            "schema": core_schema.literal_schema([SCHEMA]),
            "event_id": _ID,
            "occurred_at": core_schema.str_schema(),
            "source": _object({"id": _NAME, "integration": _TEXT}, {"version": _TEXT}),
            "type": _ID,
        },
        {
            "context": _CONTEXT,
            "data": core_schema.dict_schema(core_schema.str_schema(), min_length=1),
            "evidence": core_schema.list_schema(_object({"ref": _TEXT}, {"type": _TEXT}), min_length=1),
        },
    ),
    core_schema.CoreConfig(strict=True),
)

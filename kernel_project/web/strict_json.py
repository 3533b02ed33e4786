"""Read a body as strict JSON and say where it is wrong. Coerces and repairs nothing."""

from __future__ import annotations

import json
import math
from typing import Any

from kernel_project.web.problems import NotReadable, mistake, not_readable

DEPTH_MAX = 32  # levels of nesting in a request; our own bodies need three
INTEGER_DIGITS_MAX = 100  # an integer of more digits is hostile; no number of ours has more than 19
EXACT_BELOW = 2.0**53  # from here on floats skip integers


class Flaw:
    """Stands in the parsed value where something cannot be accepted, so that its path can be told."""

    def __init__(self, message: str) -> None:
        self.message = message


def read_json(data: bytes) -> Any:
    """The value of a JSON text.

    Raises NotReadable with the path for NaN, infinities, numbers that overflow, keys that come twice, NUL and half
    surrogates in text, and nesting deeper than DEPTH_MAX; and `bad_json` for what is no JSON in UTF-8 at all.
    """
    try:
        value = json.loads(
            data.decode(), object_pairs_hook=_object, parse_constant=_constant, parse_float=_float, parse_int=_integer
        )
    except UnicodeDecodeError as error:
        raise _bad(f"the body is not UTF-8 (byte {error.start})") from None
    except json.JSONDecodeError as error:
        raise _bad(f"the body is not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        raise _bad(f"the body is nested deeper than {DEPTH_MAX} levels") from None
    if flaw := _flaw(value, "$", 0):
        raise flaw
    return value


def _bad(message: str) -> NotReadable:
    return NotReadable(message, code="bad_json", errors=[mistake("body", "$", message)])


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for key, value in pairs:
        members[key] = Flaw("the member comes twice") if key in members else value
    return members


def _constant(name: str) -> Flaw:
    return Flaw(f"{name} is not JSON")


def _float(text: str) -> float | int | Flaw:
    """For JSON, and for JSON Schema, 3.0 and 3 are one number: here it is an integer as far as that is exact."""
    number = float(text)
    if not math.isfinite(number):
        return Flaw("the number is too large")
    return int(number) if number.is_integer() and abs(number) < EXACT_BELOW else number


def _integer(text: str) -> int | Flaw:
    return int(text) if len(text) <= INTEGER_DIGITS_MAX else Flaw(f"the integer has {len(text)} digits")


def _flaw(value: Any, path: str, depth: int) -> NotReadable | None:
    """The first flaw of the value, in the order of the text."""
    if depth > DEPTH_MAX:
        return _at(path, f"nested deeper than {DEPTH_MAX} levels")
    match value:
        case Flaw():
            return _at(path, value.message)
        case str():
            return _text_flaw(value, path)
        case dict():
            members = ((key, f"{path}.{key}", member) for key, member in value.items())
            found = (_text_flaw(key, path) or _flaw(member, where, depth + 1) for key, where, member in members)
            return next(filter(None, found), None)
        case list():
            items = (_flaw(item, f"{path}[{index}]", depth + 1) for index, item in enumerate(value))
            return next(filter(None, items), None)
    return None


def _text_flaw(text: str, path: str) -> NotReadable | None:
    if "\x00" in text:
        return _at(path, "the text holds a NUL character")
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        return _at(path, "the text holds half a surrogate pair")
    return None


def _at(path: str, message: str) -> NotReadable:
    shown = path.encode("utf-8", "backslashreplace").decode()
    return not_readable([mistake("body", shown, message)])

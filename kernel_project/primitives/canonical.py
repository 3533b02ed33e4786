"""Canonical JSON: one value, one text, one hash.

RFC 8785 (keys by UTF-16 code units, floats as ECMAScript writes them), with one difference: integers keep every
digit, because an amount or an id beyond 2^53 must not change when it is signed.
"""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any

import rfc8785

from kernel_project.primitives.errors import Invalid

DEPTH_MAX = 64  # levels of nesting; deeper values are hostile, and recursion would end the process
INTEGER_MAX = 10**18  # beyond it Python may refuse to write the digits
FIRST_ASTRAL = "\U00010000"  # from here on, code point order and UTF-16 order of keys can differ


# A value that contains itself is deeper than DEPTH_MAX, which is checked before.
_ENCODER = json.JSONEncoder(ensure_ascii=False, check_circular=False, sort_keys=True, separators=(",", ":"))


class NotCanonical(Invalid):
    """The value has no canonical form; `path` says where (`$.items[2].score`)."""

    code = "not_canonical"


def canonical_json(value: Any) -> str:
    """The canonical text of a JSON value.

    Raises NotCanonical for NaN, infinities, lone surrogates, keys that are no strings, types that JSON does not have,
    and nesting deeper than DEPTH_MAX.
    """
    if _simple(value, 0) or _plain(value, "$", 0):
        return _ENCODER.encode(value)
    return _write(value)


def canonical_bytes(value: Any) -> bytes:
    """The bytes that are stored, shown, compared and hashed."""
    return canonical_json(value).encode()


def sha256_hex(data: bytes) -> str:
    """Lower-case hex SHA-256: the form of every hash in the kernel."""
    return hashlib.sha256(data).hexdigest()


def parse_json(text: str | bytes) -> Any:
    """Read strict JSON. Raises Invalid (`bad_json`) for anything else: NaN, 1e400, bad UTF-8, deep nesting."""
    try:
        return json.loads(text, parse_constant=_no_constant, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise Invalid(f"not valid JSON: {error}", code="bad_json") from error


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:40]} is too large for a number")
    return number


def _simple(value: Any, depth: int) -> bool:
    """Whether it is nothing but ASCII text, small integers, lists and objects, as nearly everything is: known at a part
    of the cost of `_plain`, which has to say where something is wrong. False says nothing.
    """
    kind = type(value)
    if kind is str:
        return bool(value.isascii())
    if kind is int:
        return bool(-INTEGER_MAX < value < INTEGER_MAX)
    if value is None or kind is bool:
        return True
    if depth >= DEPTH_MAX:
        return False
    if kind is dict:
        for key, member in value.items():
            if type(key) is not str or not key.isascii() or not _simple(member, depth + 1):
                return False
        return True
    if kind is list or kind is tuple:
        for member in value:  # noqa: SIM110  a generator would cost twice as much
            if not _simple(member, depth + 1):
                return False
        return True
    return False


def _plain(value: Any, path: str, depth: int) -> bool:
    """Check the whole value; true if the standard library already writes its canonical form."""
    if depth > DEPTH_MAX:
        raise NotCanonical(f"nested deeper than {DEPTH_MAX} levels at {path}", path=path)
    match value:
        case None | bool():
            return True
        case int():
            return _number_fits(value, path)
        case str():
            return _text_fits(value, path)
        case float():
            if not math.isfinite(value):
                raise NotCanonical(f"{value} at {path} is not a JSON number", path=path)
            return False
        case dict():
            plain = True
            for key, member in value.items():
                if not isinstance(key, str):
                    raise NotCanonical(f"the key {key!r} at {path} is not text", path=path)
                _text_fits(key, path)
                plain &= key < FIRST_ASTRAL and max(key, default="") < FIRST_ASTRAL
                plain &= _plain(member, f"{path}.{key}", depth + 1)
            return plain
        case list() | tuple():
            plain = True
            for index, member in enumerate(value):
                plain &= _plain(member, f"{path}[{index}]", depth + 1)
            return plain
    raise NotCanonical(f"{type(value).__name__} at {path} is not a JSON type", path=path)


def _number_fits(value: int, path: str) -> bool:
    try:
        str(value)
    except ValueError as error:  # Python's own limit on digits
        raise NotCanonical(f"the integer at {path} has too many digits", path=path) from error
    return True


def _text_fits(text: str, path: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise NotCanonical(f"the text at {path} holds half a surrogate pair", path=path) from error
    return True


def _write(value: Any) -> str:
    match value:
        case float():
            return rfc8785.dumps(value).decode()
        case dict():
            members = sorted(value.items(), key=lambda member: member[0].encode("utf-16-be"))
            return "{" + ",".join(f"{_write(key)}:{_write(member)}" for key, member in members) + "}"
        case list() | tuple():
            return "[" + ",".join(map(_write, value)) + "]"
    return json.dumps(value, ensure_ascii=False)

"""Many rows as one parameter per column: texts that PostgreSQL reads as arrays, cheaper than the driver's own lists."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

SEPARATOR = "\x1e"  # between JSON texts: JSON never holds it unescaped


def array(texts: Iterable[str]) -> str:
    """The text form of `text[]`. Arrays of different lengths travel in it as their own text form."""
    listed = list(texts)
    joined = '","'.join(listed)
    if "\\" in joined or joined.count('"') > 2 * (len(listed) - 1):
        joined = '","'.join(text.replace("\\", "\\\\").replace('"', '\\"') for text in listed)
    return f'{{"{joined}"}}' if listed else "{}"


def numbers(values: Sequence[int | None]) -> str:
    """The text form of `bigint[]`."""
    return "{" + ",".join("NULL" if value is None else str(value) for value in values) + "}"


def flags(values: Iterable[bool]) -> str:
    """The text form of `boolean[]`."""
    return "{" + ",".join("t" if value else "f" for value in values) + "}"


def json_texts(texts: Iterable[str]) -> str:
    """For `string_to_array(…, E'\\x1e')`: nothing has to be escaped."""
    return SEPARATOR.join(texts)

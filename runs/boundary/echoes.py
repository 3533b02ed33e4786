"""Keep a call's own arguments out of the sentence that says why it failed: lists show that sentence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

ECHO_CHARS_MIN = 8  # shorter texts are words like "EUR"; hiding them would hide the sentence
TEXTS_MAX = 1_000  # of one call that are looked for
MARK = "[an argument]"


def without(message: str, arguments: Any) -> str:
    """The message with a mark in the place of each text that is an argument of the call, the longest first."""
    texts = [text for text, _ in zip(_texts(arguments), range(TEXTS_MAX), strict=False) if text in message]
    for text in sorted(texts, key=len, reverse=True):
        message = message.replace(text, MARK)
    return message


def _texts(value: Any) -> Iterator[str]:
    match value:
        case str() if len(value) >= ECHO_CHARS_MIN:
            yield value
        case dict():
            for member in value.values():
                yield from _texts(member)
        case list() | tuple():
            for member in value:
                yield from _texts(member)

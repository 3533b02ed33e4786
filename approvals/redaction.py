"""Hide what looks like a secret from those who look at a call, mark where it stands, put it back after an edit."""

from __future__ import annotations

import re
from typing import Any

from kernel_project.primitives.canonical import canonical_json
from kernel_project.primitives.errors import Invalid

MARK = "[redacted:"
SECRET_NAME = re.compile(
    r"(?:^|[_\-. ])(?:password|passwd|passphrase|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|credentials?"
    r"|authorization|cookie)$"
)
CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
# What may stand between BEGIN and END of a key: headers, then one long line or many lines of base64, kept with line
# ends, blanks or `\n`. Anything else is no key and is shown. Of a key without an end only long lines are hidden.
GAP = r"(?:\s|\\[nr]){1,20}+"
KEY_LINES = (
    rf"(?:{GAP}(?:Proc-Type|DEK-Info):[ \w,-]{{1,80}}){{0,2}}"
    rf"(?:{GAP}[A-Za-z0-9+/]{{129,20000}}+={{0,2}}|(?:{GAP}[A-Za-z0-9+/]{{%d,128}}+={{0,2}}){{1,400}})"
)
# Each begins where no character of its own kind stands before it, so that a long text is walked through once.
SECRET_VALUE = re.compile(
    r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----"
    rf"(?:{KEY_LINES % 1}{GAP}-----END [A-Z ]{{0,40}}PRIVATE KEY-----|{KEY_LINES % 40})"
    r"|(?<![\w-])(?:sk|pk|rk)[-_][\w-]{20,}"
    r"|(?<![\w-])(?:gh[pousr]_\w{30,}|AKIA[0-9A-Z]{16}(?!\w)|xox[abprs]-[\w-]{10,})"
    r"|(?<![\w-])eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]{5,}"
    r"|(?<=://)[^/\s:@]{1,100}:[^/\s@]{1,300}(?=@)"
    r"|(?i:(?<=bearer ))[\w.~+/-]{16,}=*",
    re.ASCII,
)


def redacted(value: Any, name: str = "") -> Any:
    """The same value with a mark in the place of each secret."""
    match value:
        case dict():
            return {key: redacted(member, key) for key, member in value.items()}
        case list():
            return [redacted(member, name) for member in value]
        case str() if value and SECRET_NAME.search(CAMEL.sub("_", name).lower()):
            return _mark(value)
        case str():
            return SECRET_VALUE.sub(lambda found: _mark(found[0]), value)
    return value


def _mark(secret: str) -> str:
    return f"{MARK} {len(secret)} characters]"


def count(original: Any, shown: Any) -> int:
    """How many texts of the original are shown with a mark."""
    match original, shown:
        case dict(), dict():
            return sum(count(member, shown[key]) for key, member in original.items())
        case list(), list():
            return sum(count(one, other) for one, other in zip(original, shown, strict=True))
    return int(original != shown)


def restored(edited: Any, original: Any) -> Any:
    """What a person made of the redacted value, with the secrets that were left alone in their places again.

    Raises Invalid where a mark stands in a text that was changed, or in an item of a list that was: what would be sent
    there could not be known.
    """
    return _restored(edited, original, redacted(original), "$")


def _restored(edited: Any, original: Any, shown: Any, path: str) -> Any:
    match edited:
        case dict():
            known, seen = (one if isinstance(one, dict) else {} for one in (original, shown))
            return {key: _restored(one, known.get(key), seen.get(key), f"{path}.{key}") for key, one in edited.items()}
        case list():
            return _restored_items(edited, original, shown, path)
        case str() if edited == shown and isinstance(original, str):
            return original
        case str() if MARK in edited:
            raise Invalid(
                f"the redacted text at {path} can be left as it is or replaced as a whole, not moved or changed"
            )
    return edited


def _restored_items(edited: list[Any], original: Any, shown: Any, path: str) -> list[Any]:
    """An item has no name but its place, which an edit moves: secrets come back only where it was left alone whole."""
    same_length = isinstance(shown, list) and len(shown) == len(edited)
    items = []
    for place, item in enumerate(edited):
        if same_length and canonical_json(item) == canonical_json(shown[place]):
            items.append(original[place])
        elif _has_mark(item):
            raise Invalid(
                f"the list at {path} was changed around a redacted text, in {path}[{place}]: leave the length of the "
                "list and everything in that item as they are, or write the real value in the place of the mark"
            )
        else:
            items.append(item)
    return items


def _has_mark(value: Any) -> bool:
    match value:
        case dict():
            return any(_has_mark(member) for member in value.values())
        case list():
            return any(map(_has_mark, value))
    return isinstance(value, str) and MARK in value

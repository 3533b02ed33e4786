"""Make hostile text safe to look at: what cannot be seen is named, what looks alike is told. Trusts no character."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

SHOWN_CHARS_MAX = 200_000  # of one text on one page; what is left out is said
LOOK_ALIKES_MAX = 20  # words that one warning names
INVISIBLE = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp", "Zs"})
SUSPECT = re.compile(r"[^\x20-\x7e\n\t]")
FILLERS = frozenset("\u115f\u1160\u3164\uffa0\u2800")  # letters and a symbol by category, blank to the eye
WORD = re.compile(r"[^\W\d_]{2,}")
SCRIPTS = ("LATIN", "CYRILLIC", "GREEK", "ARMENIAN", "CHEROKEE")


def parts(text: str) -> Iterator[tuple[str, str]]:
    """Pieces of the text as ("text", piece) and ("hidden", character), in order."""
    begin = 0
    for found in SUSPECT.finditer(text):
        if not _invisible(found[0]):
            continue
        if found.start() > begin:
            yield "text", text[begin : found.start()]
        yield "hidden", found[0]
        begin = found.end()
    if begin < len(text):
        yield "text", text[begin:]


def shown(value: object, limit: int = SHOWN_CHARS_MAX) -> SafeString:
    """HTML of a text from anywhere: escaped, with a visible mark for each control, bidi and other unseen character."""
    text = str(value)
    marked = format_html_join("", "{}", ((_piece(kind, piece),) for kind, piece in parts(text[:limit])))
    if len(text) <= limit:
        return marked
    return format_html('{}<span class="k-cut">… {} more characters are not shown</span>', marked, len(text) - limit)


def hidden_count(text: str) -> int:
    """How many characters of the text the eye would miss."""
    return sum(kind == "hidden" for kind, _ in parts(text))


def look_alikes(text: str) -> list[str]:
    """Words that mix alphabets whose letters look the same, such as a Cyrillic а in a Latin name."""
    mixed = {word: None for word in WORD.findall(text) if not word.isascii() and len(_scripts(word)) > 1}
    return list(mixed)[:LOOK_ALIKES_MAX]


def _invisible(character: str) -> bool:
    return unicodedata.category(character) in INVISIBLE or character in FILLERS


def _piece(kind: str, piece: str) -> str | SafeString:
    if kind == "text":
        return piece
    code = f"U+{ord(piece):04X}"
    return format_html('<span class="k-hidden" title="{}">{}</span>', unicodedata.name(piece, "control"), code)


def _scripts(word: str) -> set[str]:
    names = (unicodedata.name(letter, "") for letter in word)
    return {script for name in names for script in SCRIPTS if name.startswith(script)}

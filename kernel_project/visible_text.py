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
# Letters, marks and a symbol by category, blank to the eye: Unicode's Default_Ignorable_Code_Point as far as INVISIBLE
# does not have them (joiners, fillers, vowel signs without a shape, variation selectors), and the empty Braille cell.
FILLERS = frozenset(
    map(
        chr,
        (0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, *range(0x180B, 0x1810), 0x2800, 0x3164, *range(0xFE00, 0xFE10), 0xFFA0,
         *range(0xE0100, 0xE01F0)),
    )
)  # fmt: skip
WORD = re.compile(r"[^\W\d_]{2,}")
LATIN_LOOKS = frozenset(  # letters of the Cyrillic and Greek alphabets that pass for Latin ones in common typefaces
    "асԁеһіјӏорԛѕԝухүьАВСЕНІЈКМОРԚЅТԜХҮЬαικνορυχΑΒΕΖΗΙΚΜΝΟΡΤΥΧ"
)
LATIN_LOOKS_MIN = 4  # letters of a word that is told because all of them pass for Latin; in capitals one less
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
    """Words that may not be what they seem, in order.

    They mix alphabets whose letters look the same, such as a Cyrillic а in a Latin name; or consist wholly of Cyrillic
    or Greek letters that pass for Latin ones (four or more, or three capitals: shorter ones are common words); or have
    a letter that is a Latin or Greek one in another dress, mathematical or full-width.
    """
    told = {word: None for word in WORD.findall(text) if not word.isascii() and _may_deceive(word)}
    return list(told)[:LOOK_ALIKES_MAX]


def _may_deceive(word: str) -> bool:
    least = LATIN_LOOKS_MIN - word.isupper()
    disguised = len(word) >= least and LATIN_LOOKS.issuperset(word)
    return disguised or len(_scripts(word)) > 1 or any(map(_dressed, word))


def _dressed(letter: str) -> bool:
    return unicodedata.decomposition(letter).startswith(("<font>", "<wide>"))


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

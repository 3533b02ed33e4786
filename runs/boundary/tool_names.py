"""The names under which tools are shown to a model: at most 64 characters of [A-Za-z0-9_-].

A name depends on its own (server, tool) pair alone, so it is the same after a restart, in any order, and whichever
other tools exist. Approvals, events and dispatch keep the pair itself and never read anything out of the name.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

NAME_CHARACTERS_MAX = 64  # what the strictest provider takes
HASH_CHARACTERS = 12  # 48 bits: enough for one project's tools, and a collision is still told apart below
HASH_CHARACTERS_MAX = 40
JOINT = "__"  # between server and tool
MARK = "-h"  # before the hash; a plain name that ends like a hashed one is hashed as well

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*\Z")
_HASHED_END = re.compile(rf"{MARK}[0-9a-f]{{{HASH_CHARACTERS},{HASH_CHARACTERS_MAX}}}\Z")
_UNFIT = re.compile(r"[^A-Za-z0-9]+")

Identity = tuple[str, str]


def exposed_names(identities: Iterable[Identity]) -> dict[Identity, str]:
    """The name of each (server, tool). The server of a tool of our own is the empty text."""
    names: dict[Identity, str] = {}
    taken: dict[str, Identity] = {}
    for identity in sorted(set(identities)):
        name = _free_name(identity, taken)
        taken[name] = identity
        names[identity] = name
    return names


def exposed_name(server: str, tool: str, *, hash_characters: int = HASH_CHARACTERS) -> str:
    """The name of one tool: `server__tool` where that is readable back in only one way, else a slug with a hash."""
    plain = f"{server}{JOINT}{tool}" if server else tool
    if _is_plain(server, tool, plain):
        return plain
    ending = MARK + _digest(server, tool)[:hash_characters]
    slug = _slug(f"{server} {tool}")[: NAME_CHARACTERS_MAX - len(ending)].rstrip("_")
    return slug + ending


def _free_name(identity: Identity, taken: dict[str, Identity]) -> str:
    for hash_characters in range(HASH_CHARACTERS, HASH_CHARACTERS_MAX + 1):
        name = exposed_name(*identity, hash_characters=hash_characters)
        if name not in taken:
            return name
    raise AssertionError(f"two tools share {HASH_CHARACTERS_MAX} characters of SHA-256: {identity}")


def _is_plain(server: str, tool: str, plain: str) -> bool:
    """Injective by construction: the first joint of a plain name is the only place where it can be taken apart."""
    ambiguous = JOINT in server or server.endswith("_") or tool.startswith("_") or (not server and JOINT in tool)
    fits = _PLAIN.match(plain) and len(plain) <= NAME_CHARACTERS_MAX and bool(tool)
    return bool(fits) and not ambiguous and not _HASHED_END.search(plain)


def _slug(text: str) -> str:
    slug = _UNFIT.sub("_", text).strip("_")
    return slug if slug[:1].isalpha() else f"tool_{slug}".rstrip("_")


def _digest(server: str, tool: str) -> str:
    """Over both parts with their lengths, so that no other pair spells the same bytes."""
    parts = [part.encode("utf-8", "surrogatepass") for part in (server, tool)]
    return hashlib.sha256(b"".join(len(part).to_bytes(8, "big") + part for part in parts)).hexdigest()

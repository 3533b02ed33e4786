"""Keys by name, the newest first: seal bytes with that one, open what any of them has sealed. Settings hold references.

Sealed bytes tell the name of their key, so that keys can be changed while both old and new bytes are about.
"""

from __future__ import annotations

import os
import re
import secrets
from base64 import b64decode, b64encode, urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, AESSIV
from cryptography.hazmat.primitives.hashes import SHA512
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from kernel_project.primitives.errors import Invalid

MARK = b"\x00AKE1"  # no text and no JSON begins so
PLAIN = MARK + b"\x00"  # before plain bytes that begin like sealed ones
KEY_BYTES = 32  # AES-256
AESSIV_KEY_BYTES = 64  # two of 256 bits
NONCE_BYTES = 12
NAME_BYTES_MAX = 32
KEYS_MAX = 100
REFERENCE = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,31})=(env|file):(\S+)", re.ASCII)


class KeyUnavailable(Invalid):
    """The key that bytes were sealed with is not among those that are configured."""

    code = "key_unavailable"


class Damaged(Exception):
    """Sealed bytes that their key does not open: they were changed, or belong elsewhere."""


@dataclass(frozen=True)
class Keyring:
    """Keys by name, the first one seals. Without keys it seals nothing, and opens what is not sealed."""

    keys: Mapping[str, bytes]

    @property
    def newest(self) -> str:
        """The name of the key that seals; "" without keys."""
        return next(iter(self.keys), "")

    def seal(self, data: bytes, about: str) -> bytes:
        """The bytes under the newest key, bound to what they are `about`; as they are without keys."""
        if not self.keys:
            return PLAIN + data if data.startswith(MARK) else data
        header = self.header()
        nonce = secrets.token_bytes(NONCE_BYTES)
        sealed = AESGCM(self.keys[self.newest]).encrypt(nonce, data, header + about.encode())
        return header + nonce + sealed

    def header(self) -> bytes:
        """What everything that the newest key seals begins with; empty without keys."""
        name = self.newest.encode()
        return MARK + bytes([len(name)]) + name if name else b""

    def seal_alike(self, text: str, about: str) -> str:
        """A text as one word, `NAME:…`: the same word each time, so that equal texts are known as equal by it.

        Raises KeyUnavailable without keys.
        """
        if not self.keys:
            raise KeyUnavailable("ARTIFACT_KEYS names no key to seal it with")
        sealed = self._alike(self.newest).encrypt(text.encode(), [about.encode()])
        return f"{self.newest}:{urlsafe_b64encode(sealed).decode()}"

    def open_alike(self, word: str, about: str) -> str:
        """The text of `seal_alike`. Raises KeyUnavailable and Damaged."""
        name, _, sealed = word.partition(":")
        if name not in self.keys:
            raise KeyUnavailable(f"it is sealed with the key {name!r}, which is not configured: name it again")
        try:
            data = urlsafe_b64decode(sealed)
            return self._alike(name).decrypt(data, [about.encode()]).decode()
        except (InvalidTag, ValueError):
            raise Damaged("it cannot be opened: it was changed, or belongs elsewhere") from None

    def _alike(self, name: str) -> AESSIV:
        """Of another key than `seal` uses, made from it."""
        return AESSIV(HKDF(SHA512(), AESSIV_KEY_BYTES, salt=None, info=b"alike").derive(self.keys[name]))

    def open(self, data: bytes, about: str) -> bytes:
        """The plain bytes. Raises KeyUnavailable, and Damaged for bytes that were changed or belong elsewhere."""
        name = sealed_with(data)
        if not name:
            return data.removeprefix(PLAIN)
        if name not in self.keys:
            raise KeyUnavailable(f"{about} is sealed with the key {name!r}, which is not configured: name it again")
        body = len(MARK) + 1 + len(name)
        nonce, sealed = data[body : body + NONCE_BYTES], data[body + NONCE_BYTES :]
        try:
            return AESGCM(self.keys[name]).decrypt(nonce, sealed, data[:body] + about.encode())
        except (InvalidTag, ValueError):
            raise Damaged(f"{about} cannot be opened with its key {name!r}: its bytes were changed") from None


def sealed_with(data: bytes) -> str:
    """The name of the key that bytes are sealed with, of which their beginning is enough; "" for plain ones."""
    if not data.startswith(MARK) or len(data) <= len(MARK):
        return ""
    begin = len(MARK) + 1
    return data[begin : begin + data[len(MARK)]].decode("ascii", "replace")


HEADER_BYTES_MAX = len(MARK) + 1 + NAME_BYTES_MAX


def check(references: str) -> str:
    """The references as they are. Raises ValueError if they have not the form NAME=env:VARIABLE or NAME=file:/path."""
    names = [_reference(one)[0] for one in _split(references)]
    if len(names) != len(set(names)) or len(names) > KEYS_MAX:
        raise ValueError(f"must name each key once, and at most {KEYS_MAX}")
    return references


def load(references: str) -> Keyring:
    """The keys that are referred to, with commas between, the newest first. Raises Invalid for one that is none."""
    return Keyring({name: _key(kind, place) for name, kind, place in map(_reference, _split(references))})


def new_key() -> str:
    """A fresh key, as it stands in a variable or a file."""
    return b64encode(secrets.token_bytes(KEY_BYTES)).decode()


def _split(references: str) -> list[str]:
    return [one.strip() for one in references.split(",") if one.strip()]


def _reference(text: str) -> tuple[str, str, str]:
    found = REFERENCE.fullmatch(text)
    if found is None:
        raise ValueError("must look like 2026=env:VARIABLE or 2026=file:/path, with commas between, the newest first")
    return found[1], found[2], found[3]


def _key(kind: str, place: str) -> bytes:
    try:
        text = os.environ[place] if kind == "env" else Path(place).read_text()
        key = b64decode(text.strip(), validate=True)
    except (KeyError, OSError):
        raise Invalid(f"the key at {kind}:{place} cannot be read") from None
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise Invalid(f"the key at {kind}:{place} must be the base64 of {KEY_BYTES} bytes")
    return key

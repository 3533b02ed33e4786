"""Keys by name: what is sealed is opened by its key alone, and settings hold references, never keys."""

from __future__ import annotations

import pytest

from kernel_project.primitives import keyring
from kernel_project.primitives.errors import Invalid


@pytest.mark.parametrize("text", ["2026", "2026=secret", "2026=env:", "a=env:X,a=env:Y", "k=http://x", "=env:X"])
def test_what_is_no_reference_is_refused_at_the_start(text):
    with pytest.raises(ValueError, match="must"):
        keyring.check(text)


def test_keys_are_read_from_variables_and_files(tmp_path, monkeypatch):
    (tmp_path / "old").write_text(keyring.new_key() + "\n")
    monkeypatch.setenv("NEW", keyring.new_key())
    both = keyring.load(f"new=env:NEW, old=file:{tmp_path / 'old'}")
    old = keyring.load(f"old=file:{tmp_path / 'old'}")
    assert both.newest == "new"
    assert both.open(old.seal(b"x", "a"), "a") == b"x"
    with pytest.raises(keyring.KeyUnavailable, match="'new'"):
        old.open(both.seal(b"x", "a"), "a")


@pytest.mark.parametrize(("reference", "why"), [("k=env:ABSENT_KEY", "cannot be read"), ("k=env:SHORT", "32 bytes")])
def test_a_key_that_is_none_is_named(reference, why, monkeypatch):
    monkeypatch.setenv("SHORT", "c2hvcnQ=")
    with pytest.raises(Invalid, match=why):
        keyring.load(reference)


def test_sealed_bytes_are_bound_to_what_they_are_about_and_to_their_key(monkeypatch):
    ring = keyring.Keyring({"a": b"1" * 32, "b": b"2" * 32})
    sealed = ring.seal(b"text", "here")
    assert sealed != ring.seal(b"text", "here"), "two seals of one text must not look alike"
    changed = sealed[:20] + bytes([sealed[20] ^ 1]) + sealed[21:]
    for other in (sealed[:-1], changed, sealed.replace(b"\x01a", b"\x01b", 1), sealed[:7]):
        with pytest.raises(keyring.Damaged):
            ring.open(other, "here")
    with pytest.raises(keyring.Damaged):
        ring.open(sealed, "there")

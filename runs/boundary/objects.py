"""The object store: local files or S3. What was written is on the disk; bodies are sealed where keys are set."""

from __future__ import annotations

import contextlib
import heapq
import logging
import os
import secrets
from collections.abc import Iterator
from datetime import datetime
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

import obstore
from django.conf import settings
from obstore.exceptions import AlreadyExistsError, GenericError, NotFoundError
from obstore.store import LocalStore, ObjectStore, S3Store

from kernel_project.primitives import keyring

logger = logging.getLogger(__name__)
ABSENT = (NotFoundError, FileNotFoundError)
UNFINISHED = "unfinished"  # files that are being written, before they have their name
ALIKE = "alike/key"
PAGE_OBJECTS = 10_000  # paths of one shard in memory at once


@cache
def store() -> ObjectStore:
    """The store of ARTIFACT_URL."""
    url = urlsplit(settings.ARTIFACT_URL)
    if url.scheme == "file":
        Path(url.path).mkdir(parents=True, exist_ok=True)
        return LocalStore(prefix=url.path)
    if url.scheme == "s3":
        return S3Store(bucket=url.netloc, prefix=url.path.strip("/") or None)
    raise ValueError(f"ARTIFACT_URL must be file:///… or s3://…, not {settings.ARTIFACT_URL!r}")


@cache
def keys() -> keyring.Keyring:
    """The keys of ARTIFACT_KEYS."""
    return keyring.load(settings.ARTIFACT_KEYS)


def put(path: str, data: bytes) -> None:
    """Write an object, or write over it."""
    _write(path, keys().seal(data, path), over=True)


def put_if_absent(path: str, data: bytes) -> None:
    """Write an object unless there is one: it has the same content, whatever key it is sealed with."""
    try:
        _write(path, keys().seal(data, path), over=False)
    except AlreadyExistsError:
        if _under_lost_key(path):
            put(path, data)


def _under_lost_key(path: str) -> bool:
    """Whether nobody could read the object: then the bytes at hand are better than those that are there."""
    name = keyring.sealed_with(_beginning(path) or b"")
    return bool(name) and name not in keys().keys


def get(path: str, about: str = "") -> bytes | None:
    """The plain bytes of an object, if it is there. Raises keyring.KeyUnavailable and keyring.Damaged.

    `about` is the path that it was sealed for, if it has been moved since.
    """
    data = _raw(path)
    return None if data is None else keys().open(data, about or path)


def copy_as_it_is(path: str, target: str) -> None:
    """Copy an object with its seal, of which this needs no key."""
    data = _raw(path)
    if data is not None:
        _write(target, data, over=True)


def alike_key() -> bytes:
    """The key by which equal secret values are known: made once for a store, and kept in it like any object.

    A change of ARTIFACT_KEYS does not change it, so what was the same call before a rotation is so after it.
    Raises keyring.KeyUnavailable if the key that seals it is not configured.
    """
    return _alike_key(settings.ARTIFACT_URL)


@cache
def _alike_key(_url: str) -> bytes:
    found = get(ALIKE)
    if found is None:
        put_if_absent(ALIKE, secrets.token_bytes(keyring.KEY_BYTES))
        found = get(ALIKE)  # of whoever was first
    assert found is not None
    return found


def delete(path: str) -> None:
    """Remove an object, if it is there."""
    with contextlib.suppress(*ABSENT):
        obstore.delete(store(), path)


def reseal(path: str) -> bool:
    """Put an object under the newest key; whether it was under another one, or under none."""
    begin = _beginning(path)
    if begin is None or keyring.sealed_with(begin) == keys().newest:
        return False
    data = get(path)
    if data is not None:
        put(path, data)
    return data is not None


def old(prefix: str, edge: datetime, count: int, after: str = "") -> list[str]:
    """Paths below a prefix, the first `count` behind `after` in their order, that were last written before `edge`.

    A local store lists in no order: it is listed whole, but no more than `count` paths are kept of it.
    """
    return heapq.nsmallest(
        count,
        (
            one["path"]
            for batch in obstore.list(store(), prefix=prefix, offset=after or None)
            for one in batch
            if one["last_modified"] < edge
        ),
    )


def pages(prefix: str, edge: datetime, after: str) -> Iterator[list[str]]:
    """Pages of a sharded prefix (`prefix/ab/ab…`) behind the path `after`, in the order of their paths."""
    for shard in sorted(obstore.list_with_delimiter(store(), prefix)["common_prefixes"]):
        last = after if after.startswith(f"{shard}/") else ""
        while (last or shard > after) and (page := old(shard, edge, PAGE_OBJECTS, last)):
            yield page
            last = page[-1]


def position(name: str) -> str:
    """How far a walk over the store has come; "" at its beginning, and where that cannot be read."""
    try:
        return (get(f"positions/{name}") or b"").decode()
    except (keyring.Damaged, keyring.KeyUnavailable) as error:
        logger.warning("the walk %r begins anew: %s", name, error)
        return ""


def keep_position(name: str, path: str) -> None:
    """Where the next tick of a walk goes on; "" for the beginning."""
    put(f"positions/{name}", path.encode())


def forget_unfinished(edge: datetime, count: int) -> None:
    """Remove files that somebody died over while writing them."""
    for path in old(UNFINISHED, edge, count):
        delete(path)


def _raw(path: str) -> bytes | None:
    try:
        return bytes(obstore.get(store(), path).bytes())
    except ABSENT:
        return None


def _beginning(path: str) -> bytes | None:
    try:
        return bytes(obstore.get_range(store(), path, start=0, end=keyring.HEADER_BYTES_MAX))
    except ABSENT:
        return None


def _write(path: str, data: bytes, *, over: bool) -> None:
    target = store()
    if not isinstance(target, LocalStore):
        obstore.put(target, path, data, mode="overwrite" if over else "create")
        return
    try:
        _write_file(Path(urlsplit(settings.ARTIFACT_URL).path), path, data, over=over)
    except FileExistsError:
        raise AlreadyExistsError(path) from None
    except OSError as error:
        raise GenericError(f"{path}: {error.strerror}") from error


def _write_file(root: Path, path: str, data: bytes, *, over: bool) -> None:
    """A file gets its name when its bytes are on the disk, and the name is on the disk when this returns.

    So a name never stands for torn bytes, whatever power failure comes, and a row that commits later has its object.
    """
    target, written = root / path, root / UNFINISHED / secrets.token_hex(16)
    _make_folder(written.parent)
    _make_folder(target.parent)
    try:
        with written.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if over:
            written.replace(target)
        else:
            target.hardlink_to(written)
    finally:
        written.unlink(missing_ok=True)
        _sync_folder(target.parent)  # also when the name is there: who gave it may not have come so far


def _make_folder(folder: Path) -> None:
    """Make a folder with those above it, each of them on the disk."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)

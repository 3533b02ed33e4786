"""Bodies by digest: small ones in the row, larger ones in the object store, put there before any row names them."""

from __future__ import annotations

import contextlib
import json
from base64 import b64encode
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit
from uuid import UUID

import obstore
from django.conf import settings
from obstore.exceptions import AlreadyExistsError, NotFoundError
from obstore.store import LocalStore, ObjectStore, S3Store

from kernel_project.primitives.canonical import canonical_bytes, sha256_hex
from kernel_project.primitives.errors import NotFound
from kernel_project.primitives.sql import rows
from runs.models import Artifact

HERE = Path(__file__).parent.parent
INLINE_BYTES_MAX = 8 * 1024  # up to here a row is cheaper than an object, and commits with what refers to it
MEDIA_TYPE_CHARS_MAX = 100
ARTIFACT_BYTES_MAX = 64 * 1024 * 1024  # adapters cut earlier; this stops a bug, not a tool


class Corrupt(Exception):
    """The stored bytes are not those that the digest names."""


@dataclass(frozen=True)
class Staged:
    """Bytes that are safe where they are, ready to be claimed by a row. Only `stage` makes it."""

    digest: str
    data: bytes
    media_type: str

    @property
    def ref(self) -> str:
        return ref(self.digest)


def ref(digest: str) -> str:
    """How events and people name an artifact."""
    return f"artifact://sha256/{digest}"


def stage(data: bytes, media_type: str = "text/plain") -> Staged:
    """Make the bytes durable before a row names them. Call it outside a transaction: it may write to the store."""
    assert len(data) <= ARTIFACT_BYTES_MAX, f"an artifact of {len(data)} bytes"
    staged = Staged(sha256_hex(data), data, media_type)
    if len(data) > INLINE_BYTES_MAX:
        with contextlib.suppress(AlreadyExistsError):  # the same bytes: that is what a digest means
            obstore.put(_store(), _path(staged.digest), data, mode="create")
    return staged


def stage_json(value: object) -> Staged:
    """Stage the canonical text of a JSON value."""
    return stage(canonical_bytes(value), "application/json")


def claim(run_id: UUID, kind: Artifact.Kind, staged: Iterable[Staged]) -> None:
    """Let a run refer to staged bodies, inside the transaction that writes the reference. A repeat changes nothing."""
    rows(HERE, "claim_artifacts", {"run_id": run_id, "kind": kind.value, "bodies": claims(staged)})


def claims(staged: Iterable[Staged]) -> str:
    """Staged bodies as statements that claim them take them: small ones with their bytes."""
    return json.dumps([
        {
            "digest": one.digest,
            "size": len(one.data),
            "media_type": one.media_type[:MEDIA_TYPE_CHARS_MAX],
            "body": b64encode(one.data).decode() if len(one.data) <= INLINE_BYTES_MAX else None,
        }
        for one in staged
    ])  # fmt: skip


def read(run_id: UUID, digest: str) -> bytes:
    """The bytes that a run has claimed. Raises NotFound for a digest that it has not, Corrupt for damaged bytes."""
    return read_many(run_id, [digest])[digest]


def read_many(run_id: UUID, digests: Iterable[str]) -> dict[str, bytes]:
    """The bytes of several claims of one run, in one query and one look at the store for each large one."""
    wanted = set(digests)
    kept = Artifact.objects.filter(run_id=run_id, digest__in=wanted, purged_at__isnull=True)
    bodies = {
        digest: _checked(bytes(body), digest) if body is not None else _fetch(digest)
        for digest, body in kept.values_list("digest", "body")
    }
    if missing := wanted - bodies.keys():
        raise NotFound(f"run {run_id} has no artifact {min(missing)}")
    return bodies


def body_or_read(run_id: UUID, digest: str, body: bytes | memoryview | None) -> bytes:
    """The bytes of a claim whose row was read already, with its `body` if it has one there."""
    return _checked(bytes(body), digest) if body is not None else read(run_id, digest)


def _fetch(digest: str) -> bytes:
    try:
        data = bytes(obstore.get(_store(), _path(digest)).bytes())
    except (NotFoundError, FileNotFoundError):
        raise NotFound(f"artifact {digest} is not in the store") from None
    return _checked(data, digest)


def _checked(data: bytes, digest: str) -> bytes:
    if sha256_hex(data) != digest:
        raise Corrupt(f"artifact {digest} does not have the bytes that its name says")
    return data


def keep_outcome(operation_id: UUID, attempt: int, data: bytes) -> None:
    """Keep what an attempt learnt beside the artifacts, while the database cannot take it."""
    obstore.put(_store(), _outcome_path(operation_id, attempt), data)


def kept_outcome(operation_id: UUID, attempt: int) -> bytes | None:
    """What was kept of an attempt, if anything was and the store answers."""
    try:
        return bytes(obstore.get(_store(), _outcome_path(operation_id, attempt)).bytes())
    except (NotFoundError, FileNotFoundError):
        return None


def drop_outcome(operation_id: UUID, attempt: int) -> None:
    """Forget what was kept, once the row has it."""
    with contextlib.suppress(NotFoundError, FileNotFoundError):
        obstore.delete(_store(), _outcome_path(operation_id, attempt))


def _outcome_path(operation_id: UUID, attempt: int) -> str:
    return f"outcomes/{operation_id}/{attempt}"


def _path(digest: str) -> str:
    return f"sha256/{digest[:2]}/{digest}"


@cache
def _store() -> ObjectStore:
    url = urlsplit(settings.ARTIFACT_URL)
    if url.scheme == "file":
        Path(url.path).mkdir(parents=True, exist_ok=True)
        return LocalStore(prefix=url.path)
    if url.scheme == "s3":
        return S3Store(bucket=url.netloc, prefix=url.path.strip("/") or None)
    raise ValueError(f"ARTIFACT_URL must be file:///… or s3://…, not {settings.ARTIFACT_URL!r}")

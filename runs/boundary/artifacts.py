"""Bodies by digest: small ones in the row, larger ones in the object store, put there before any row names them."""

from __future__ import annotations

import json
import logging
import time
from base64 import b64encode
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

from kernel_project.primitives import keyring
from kernel_project.primitives.canonical import canonical_bytes, sha256_hex
from kernel_project.primitives.errors import NotFound
from kernel_project.primitives.sql import rows
from runs.boundary import objects
from runs.models import Artifact

logger = logging.getLogger(__name__)
HERE = Path(__file__).parent.parent
INLINE_BYTES_MAX = 8 * 1024  # up to here a row is cheaper than an object, and commits with what refers to it
MEDIA_TYPE_CHARS_MAX = 100
KEPT, DOOMED = "sha256", "doomed"  # where objects stand, and where those wait that nobody refers to
OUTCOMES = "outcomes"  # what attempts learnt while the database was away
ORPHAN_GRACE = timedelta(days=1)
SWEEP = "sweep"  # the name of its position
SWEEP_SECONDS = 600.0  # one tick's share; the next one goes on
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
        objects.put_if_absent(_path(staged.digest), data)
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
            "body": _inline(one),
        }
        for one in staged
    ])  # fmt: skip


def _inline(one: Staged) -> str | None:
    if len(one.data) > INLINE_BYTES_MAX:
        return None
    return b64encode(objects.keys().seal(one.data, one.digest)).decode()


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
    data = _object(_path(digest))
    if data is None:
        data = _spared(digest)
    if data is None:
        raise NotFound(f"artifact {digest} is not in the store")
    return _same(data, digest)


def _object(path: str) -> bytes | None:
    try:
        return objects.get(path)
    except keyring.Damaged as error:
        raise Corrupt(str(error)) from None


def _spared(digest: str) -> bytes | None:
    """Bytes that the sweep was about to remove when a row claimed them: they go back to their place."""
    data = _doomed(digest)
    if data is not None:
        objects.put_if_absent(_path(digest), data)
    return data


def _doomed(digest: str) -> bytes | None:
    try:
        return objects.get(_doomed_path(digest))
    except keyring.Damaged:  # or moved as it was, because it could not be read then
        try:
            return objects.get(_doomed_path(digest), about=_path(digest))
        except keyring.Damaged as error:
            raise Corrupt(str(error)) from None


def sweep(grace: timedelta = ORPHAN_GRACE, seconds_max: float = SWEEP_SECONDS) -> int:
    """Remove objects that no row refers to; returns how many went for good.

    Bytes are put before a row names them, so a young object without a row may be about to get one: none younger than
    `grace` is touched. An older one is first moved aside, where `read` still finds it, and removed after as long a time
    again: whoever found the object there and claims it only now (a claim follows within minutes) gets it back.
    Stops when the time is over, and the next sweep goes on from there; after the last object it begins anew.
    """
    edge, until = datetime.now(UTC) - grace, time.monotonic() + seconds_max
    gone = _remove_doomed(edge, until)
    for page in objects.pages(KEPT, edge, objects.position(SWEEP)):
        for digest in _unclaimed([_digest(path) for path in page]):
            _doom(digest)
        objects.keep_position(SWEEP, page[-1])
        if time.monotonic() > until:
            return gone
    objects.keep_position(SWEEP, "")
    objects.forget_unfinished(edge, objects.PAGE_OBJECTS)
    return gone


def _remove_doomed(edge: datetime, until: float) -> int:
    gone, after = 0, ""
    while page := objects.old(DOOMED, edge, objects.PAGE_OBJECTS, after):
        after = page[-1]
        unclaimed = _unclaimed([_digest(path) for path in page])
        for path in page:
            if _digest(path) in unclaimed or _goes_back(_digest(path)):
                objects.delete(path)
        gone += len(unclaimed)
        if time.monotonic() > until:
            break
    return gone


def _goes_back(digest: str) -> bool:
    """Whether a claimed object is in its place again. One that cannot be read stays aside: it holds up no other."""
    try:
        _spared(digest)
    except (Corrupt, keyring.KeyUnavailable) as error:
        logger.error("an artifact that a run refers to stands aside and cannot be read: %s", error)
        return False
    return True


def _doom(digest: str) -> None:
    """Move an object aside: written anew, since its time begins now, and only then removed.

    One that cannot be read is moved as it is: it goes like any other, unless a row claims it.
    """
    try:
        data = _object(_path(digest))
    except (Corrupt, keyring.KeyUnavailable) as error:
        logger.warning("an artifact that nobody refers to cannot be read, and goes: %s", error)
        objects.copy_as_it_is(_path(digest), _doomed_path(digest))
    else:
        if data is None:
            return
        objects.put(_doomed_path(digest), data)
    objects.delete(_path(digest))


def _digest(path: str) -> str:
    return path.rpartition("/")[2]


def _unclaimed(digests: list[str]) -> set[str]:
    claimed = Artifact.objects.filter(digest__in=digests, body__isnull=True, purged_at__isnull=True)
    return set(digests) - set(claimed.values_list("digest", flat=True))


def _checked(body: bytes, digest: str) -> bytes:
    """The plain bytes of a body that stands in its row."""
    try:
        return _same(objects.keys().open(body, digest), digest)
    except keyring.Damaged as error:
        raise Corrupt(str(error)) from None


def _same(data: bytes, digest: str) -> bytes:
    if sha256_hex(data) != digest:
        raise Corrupt(f"artifact {digest} does not have the bytes that its name says")
    return data


def keep_outcome(operation_id: UUID, attempt: int, data: bytes) -> None:
    """Keep what an attempt learnt beside the artifacts, while the database cannot take it."""
    objects.put(_outcome_path(operation_id, attempt), data)


def kept_outcome(operation_id: UUID, attempt: int) -> bytes | None:
    """What was kept of an attempt, if anything was and the store answers."""
    return objects.get(_outcome_path(operation_id, attempt))


def drop_outcome(operation_id: UUID, attempt: int) -> None:
    """Forget what was kept, once the row has it."""
    objects.delete(_outcome_path(operation_id, attempt))


def _outcome_path(operation_id: UUID, attempt: int) -> str:
    return f"{OUTCOMES}/{operation_id}/{attempt}"


def _path(digest: str) -> str:
    return f"{KEPT}/{digest[:2]}/{digest}"


def _doomed_path(digest: str) -> str:
    return f"{DOOMED}/{digest}"

"""A run as a signed file that anybody can check with the public key alone: no database, no kernel at hand."""

from __future__ import annotations

import io
import json
import os
import secrets
import tarfile
from base64 import b64decode, b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any
from uuid import UUID

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from django.conf import settings
from django.core.serializers.json import DjangoJSONEncoder
from django.db import connection, transaction
from django.db.models import Model, QuerySet
from django.forms.models import model_to_dict

from approvals.models import Approval, Decision
from kernel_project.primitives.canonical import canonical_bytes, parse_json, sha256_hex
from kernel_project.primitives.clock import now, wire_time
from kernel_project.primitives.errors import Invalid, NotFound
from outbox.models import Event
from runs.boundary import artifacts
from runs.keeping import audit
from runs.models import Artifact, AuditEntry, Operation, Run

FORMAT = "agent-kernel.bundle/1"
MANIFEST, SIGNATURE = "manifest.json", "manifest.sig"
MEMBER_BYTES_MAX = 256 * 1024 * 1024
MEMBERS_MAX = 200_000
READ_AT_ONCE = 1_000


def new_key() -> tuple[str, str]:
    """A private key for EXPORT_SIGNING_KEY and its public key, both as base64."""
    made = Ed25519PrivateKey.generate()
    return b64encode(made.private_bytes_raw()).decode(), _public(made)


def export(run_id: UUID, target: Path) -> dict[str, Any]:
    """Write the bundle of a run and return its manifest. Bodies whose retention is over are named as purged.

    All of it is from one moment, and the file has its name only when it is whole and on the disk. Raises NotFound for
    an unknown run, and Invalid without a key or for a file that is there already.
    """
    key = _private()
    audit.seal()
    if target.exists():
        raise Invalid(f"{target} is there already; name another file")
    part = target.with_name(f".{target.name}.{secrets.token_hex(8)}.part")
    try:
        with part.open("xb") as file:
            manifest = _write(file, key, run_id)
            file.flush()
            os.fsync(file.fileno())
        target.hardlink_to(part)  # not renamed: that would write over what somebody has put there meanwhile
    except FileExistsError:
        raise Invalid(f"{target} is there already; name another file") from None
    finally:
        part.unlink(missing_ok=True)
    return manifest


@transaction.atomic(durable=True)
def _write(file: IO[bytes], key: Ed25519PrivateKey, run_id: UUID) -> dict[str, Any]:
    with connection.cursor() as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
    run = Run.objects.filter(id=run_id).first()
    if run is None:
        raise NotFound("there is no such run")
    hashes: dict[str, str] = {}
    with tarfile.open(fileobj=file, mode="w") as bundle:
        for name, data in _members(run):
            _add(bundle, name, data)
            hashes[name] = sha256_hex(data)
        manifest = _manifest(run, hashes)
        text = canonical_bytes(manifest)
        _add(bundle, MANIFEST, text)
        _add(bundle, SIGNATURE, b64encode(key.sign(text)))
    return manifest


def _manifest(run: Run, hashes: dict[str, str]) -> dict[str, Any]:
    sequence, head = audit.head(run.project_id)
    return {
        "format": FORMAT, "run": str(run.id), "project": run.project_id, "source": settings.KERNEL_SOURCE_ID,
        "made_at": wire_time(now()), "files": hashes, "audit_head": {"sequence": sequence, "hash": head},
        "public_key": _public(_private()),
    }  # fmt: skip


def _members(run: Run) -> Iterator[tuple[str, bytes]]:
    claims = Artifact.objects.filter(run=run).order_by("digest", "kind")
    yield "run.json", _lines([run])
    yield "operations.jsonl", _lines(Operation.objects.filter(run=run).order_by("turn", "position"))
    yield "approvals.jsonl", _lines(Approval.objects.filter(run_id=run.id).order_by("requested_at", "id"))
    yield "decisions.jsonl", _lines(Decision.objects.filter(approval__run_id=run.id).order_by("id"))
    yield "audit.jsonl", _lines(AuditEntry.objects.filter(run_id=run.id).order_by("id"))
    yield "artifacts.jsonl", _lines(claims.defer("body"))
    events = Event.objects.filter(run_id=run.id).order_by("sequence").values_list("envelope", flat=True)
    yield "events.jsonl", "".join(f"{envelope}\n" for envelope in events.iterator(READ_AT_ONCE)).encode()
    for digest in claims.filter(purged_at__isnull=True).order_by("digest").values_list("digest", flat=True).distinct():
        yield f"artifacts/{digest}", artifacts.read(run.id, digest)


def _lines(found: QuerySet[Any] | list[Any]) -> bytes:
    return "".join(json.dumps(_facts(row), cls=DjangoJSONEncoder, sort_keys=True) + "\n" for row in found).encode()


def _facts(row: Model) -> dict[str, Any]:
    names = [field.name for field in row._meta.concrete_fields if field.name != "body"]
    known = model_to_dict(row, fields=names)
    return {field.attname: known.get(field.name, getattr(row, field.attname)) for field in row._meta.concrete_fields if
            field.name != "body"}  # fmt: skip


def _add(bundle: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    bundle.addfile(member, io.BytesIO(data))


def check(source: Path, public_key: str) -> list[str]:
    """What is wrong with a bundle; nothing: it is what the holder of the key signed. Reads the file alone."""
    try:
        with tarfile.open(source, "r:") as bundle:
            data = dict(_read(bundle))
        return list(_problems(data, public_key))
    except (tarfile.TarError, OSError) as error:
        return [f"not a bundle: {error}"]


def _read(bundle: tarfile.TarFile) -> Iterator[tuple[str, bytes]]:
    """Each member's bytes, but of bodies only their hash is needed."""
    names: set[str] = set()
    for count, member in enumerate(bundle):
        content = bundle.extractfile(member) if member.isfile() else None
        if content is None or member.size > MEMBER_BYTES_MAX or count > MEMBERS_MAX:
            raise tarfile.TarError(f"member {member.name!r} is no file, or too large")
        if member.name in names:
            raise tarfile.TarError(f"member {member.name!r} is there twice")
        names.add(member.name)
        yield member.name, content.read()


def _problems(data: dict[str, bytes], public_key: str) -> Iterator[str]:
    text, signature = data.pop(MANIFEST, b""), data.pop(SIGNATURE, b"")
    try:
        Ed25519PublicKey.from_public_bytes(b64decode(public_key, validate=True)).verify(b64decode(signature), text)
        manifest = parse_json(text)
    except (InvalidSignature, ValueError, Invalid):
        yield "the manifest is not signed by this key"
        return
    if manifest.get("format") != FORMAT:
        yield f"the format is {manifest.get('format')}, not {FORMAT}"
        return
    named = manifest["files"]
    yield from (f"{name} is missing" for name in sorted(named.keys() - data.keys()))
    yield from (f"{name} is not in the manifest" for name in sorted(data.keys() - named.keys()))
    for name in sorted(named.keys() & data.keys()):
        if sha256_hex(data[name]) != named[name]:
            yield f"{name} was changed"
    yield from _disagreements(data)


def _disagreements(data: dict[str, bytes]) -> Iterator[str]:
    """Bodies have the names of their bytes, and the audit entries speak of these very events."""
    for name, body in data.items():
        if name.startswith("artifacts/") and name.removeprefix("artifacts/") != sha256_hex(body):
            yield f"{name} does not have the bytes that its name says"
    told = {json.loads(line)["event_id"]: sha256_hex(line) for line in data.get("events.jsonl", b"").splitlines()}
    for line in data.get("audit.jsonl", b"").splitlines():
        entry = json.loads(line)
        if told.get(str(entry["event_id"]), entry["content_hash"]) != entry["content_hash"]:
            yield f"event {entry['event_id']} is not the one that was audited"


def _private() -> Ed25519PrivateKey:
    try:
        return Ed25519PrivateKey.from_private_bytes(b64decode(settings.EXPORT_SIGNING_KEY, validate=True))
    except ValueError:
        raise Invalid("set EXPORT_SIGNING_KEY; manage.py export --new-key makes one") from None


def _public(key: Ed25519PrivateKey) -> str:
    return b64encode(key.public_key().public_bytes_raw()).decode()

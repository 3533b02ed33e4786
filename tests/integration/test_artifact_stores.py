"""The same promises of both object stores, local files and S3 (moto's server), in plain and sealed with a key."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import obstore
import pytest
from django.conf import settings
from django.db import IntegrityError, connection, transaction

from kernel_project.primitives import keyring
from kernel_project.primitives.errors import Invalid, NotFound
from outbox.contracts import Actor
from runs.boundary import artifacts, objects
from runs.keeping import artifact_keys, holds
from runs.models import Artifact, Run, Tool
from tests.boundary_scene import make_project, make_run, make_scene
from tests.waiting import until_sync

pytestmark = pytest.mark.django_db
LARGE = 3 * artifacts.INLINE_BYTES_MAX
NOW = timedelta(0)
S3 = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1", "AWS_ALLOW_HTTP": "true"}


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """An S3 with one empty bucket; its address."""
    if importlib.util.find_spec("moto") is None:
        pytest.skip("moto[server] is not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, env=os.environ | S3, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        until_sync(lambda: listens(port), 30)
        urlopen(Request(f"{url}/artifacts", method="PUT"), timeout=10).close()
        yield url
    finally:
        server.kill()
        server.wait()


def listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(params=["file plain", "file sealed", "s3 plain", "s3 sealed"])
def store(request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    kind, _, how = request.param.partition(" ")
    if kind == "s3":
        for name, value in S3.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("AWS_ENDPOINT_URL", request.getfixturevalue("s3"))
    for name in ("OLD", "NEW"):
        monkeypatch.setenv(f"KEY_{name}", keyring.new_key())
    url = tmp_path.as_uri() if kind == "file" else f"s3://artifacts/{tmp_path.name}"
    monkeypatch.setattr(settings, "ARTIFACT_URL", url)
    monkeypatch.setattr(settings, "ARTIFACT_KEYS", "old=env:KEY_OLD" if how == "sealed" else "")
    objects.store.cache_clear()
    objects.keys.cache_clear()
    yield objects.store()
    objects.store.cache_clear()
    objects.keys.cache_clear()


@pytest.fixture
def run() -> Run:
    return make_run(make_project())


def kept(run: Run, data: bytes) -> str:
    staged = artifacts.stage(data)
    artifacts.claim(run.id, Artifact.Kind.RESULT, [staged])
    return staged.digest


def with_keys(monkeypatch: pytest.MonkeyPatch, references: str) -> None:
    """As if all processes had been started with other keys."""
    monkeypatch.setattr(settings, "ARTIFACT_KEYS", references)
    objects.keys.cache_clear()


def count(store: obstore.store.ObjectStore, prefix: str) -> int:
    return sum(len(batch) for batch in obstore.list(store, prefix=prefix))


def test_bytes_come_back_and_are_stored_once(store, run):
    first, again = kept(run, b"x" * LARGE), kept(make_run(make_project()), b"x" * LARGE)
    assert (first, count(store, "sha256")) == (again, 1)
    assert artifacts.read(run.id, first) == b"x" * LARGE


def test_damaged_bytes_are_never_handed_out(store, run):
    digest = kept(run, b"y" * LARGE)
    damaged = bytearray(obstore.get(store, artifacts._path(digest)).bytes())
    damaged[LARGE // 2] ^= 1
    obstore.put(store, artifacts._path(digest), bytes(damaged))
    with pytest.raises(artifacts.Corrupt):
        artifacts.read(run.id, digest)


def test_an_outcome_is_kept_and_dropped(store, run):
    artifacts.keep_outcome(run.id, 1, b"learnt")
    assert artifacts.kept_outcome(run.id, 1) == b"learnt"
    artifacts.drop_outcome(run.id, 1)
    artifacts.drop_outcome(run.id, 1)
    assert artifacts.kept_outcome(run.id, 1) is None


def test_an_object_goes_when_the_last_row_that_refers_to_it_went(store, run):
    other = make_run(make_project())
    digest = kept(run, b"a" * LARGE)
    kept(other, b"a" * LARGE)
    Artifact.objects.filter(run=run, digest=digest).delete()
    assert (artifacts.sweep(NOW), artifacts.sweep(NOW)) == (0, 0)
    assert artifacts.read(other.id, digest)
    Artifact.objects.filter(digest=digest).delete()
    assert artifacts.sweep(NOW) + artifacts.sweep(NOW) == 1
    assert count(store, "sha256") + count(store, "doomed") == 0


def test_a_worker_that_died_between_object_and_row_leaves_nothing(store):
    artifacts.stage(b"b" * LARGE)
    assert artifacts.sweep() == 0, "it may be about to get its row"
    assert count(store, "sha256") == 1
    assert (artifacts.sweep(NOW), count(store, "doomed")) == (0, 1), "moved aside first"
    assert artifacts.sweep() == 0, "its time aside begins when it is moved"
    assert artifacts.sweep(NOW) == 1


def test_bytes_that_are_claimed_while_the_sweep_is_at_work_come_back(store, run):
    """Somebody found the object there, and claims it only after it was moved aside."""
    staged = artifacts.stage(b"c" * LARGE)
    artifacts.sweep(NOW)
    assert count(store, "sha256") == 0
    artifacts.claim(run.id, Artifact.Kind.RESULT, [staged])
    assert artifacts.read(run.id, staged.digest) == b"c" * LARGE
    artifacts.sweep(NOW)
    assert artifacts.read(run.id, staged.digest) == b"c" * LARGE


def test_what_was_purged_is_gone_from_the_store(store, run):
    digest = kept(run, b"d" * LARGE)
    Artifact.objects.filter(digest=digest).update(body=None, purged_at="2026-01-01T00:00Z")
    assert artifacts.sweep(NOW) + artifacts.sweep(NOW) == 1
    with pytest.raises(NotFound):
        artifacts.read(run.id, digest)


def test_a_sweep_that_was_cut_off_is_gone_on_with_until_every_object_was_looked_at(store, run, monkeypatch):
    """However many there are: a page of them is in memory, and what is claimed in front keeps no orphan behind."""
    monkeypatch.setattr(objects, "PAGE_OBJECTS", 2)
    claimed = [kept(run, bytes([number]) * LARGE) for number in range(5)]
    for number in range(100, 107):
        artifacts.stage(bytes([number]) * LARGE)
    for _ in range(20):
        artifacts.sweep(NOW, seconds_max=0)
        if objects.position(artifacts.SWEEP) == "":
            break
    else:
        pytest.fail("it does not come to an end")
    assert count(store, "sha256") == len(claimed)
    for _ in range(4):
        artifacts.sweep(NOW, seconds_max=0)
    artifacts.sweep(NOW)
    assert (count(store, "sha256"), count(store, "doomed")) == (len(claimed), 0)
    assert all(artifacts.read(run.id, digest) for digest in claimed)


def raw(store: Any, run: Run, digest: str) -> bytes:
    """What whoever reads the disk, the bucket or the table would see."""
    body = Artifact.objects.get(run=run, digest=digest).body
    return bytes(body) if body is not None else bytes(obstore.get(store, artifacts._path(digest)).bytes())


def test_sealed_bytes_are_found_nowhere_in_plain_and_keep_the_digest_of_the_plain_ones(store, run):
    small, large = b"canary-small" * 9, b"canary-large" * LARGE
    for text in (small, large):
        digest = kept(run, text)
        assert digest == artifacts.sha256_hex(text)
        assert (b"canary" in raw(store, run, digest)) == (settings.ARTIFACT_KEYS == "")
        assert artifacts.read(run.id, digest) == text


def test_bytes_that_look_sealed_and_are_not_come_back(store, run):
    for text in (keyring.MARK, keyring.PLAIN + b"x", keyring.MARK + b"\x03old" + b"x" * LARGE):
        assert artifacts.read(run.id, kept(run, text)) == text


def test_a_sealed_body_that_is_put_in_the_place_of_another_is_found_out(store, run, monkeypatch):
    with_keys(monkeypatch, "old=env:KEY_OLD")
    one, other = kept(run, b"one"), kept(run, b"other")
    Artifact.objects.filter(run=run, digest=one).update(body=Artifact.objects.get(run=run, digest=other).body)
    with pytest.raises(artifacts.Corrupt, match="changed"):
        artifacts.read(run.id, one)


def test_a_new_key_takes_over_step_by_step_and_the_old_one_can_go(store, run, monkeypatch):
    monkeypatch.setattr(artifact_keys, "BODIES_PER_BATCH", 2)
    monkeypatch.setattr(artifact_keys, "OBJECTS_PER_STEP", 2)
    texts = {kept(run, bytes([number]) * size): bytes([number]) * size for number in range(3) for size in (9, LARGE)}
    artifacts.keep_outcome(run.id, 1, b"learnt")
    with_keys(monkeypatch, "new=env:KEY_NEW,old=env:KEY_OLD")
    stale = Artifact.objects.filter(body__isnull=False).count()
    latest = kept(run, b"latest")
    steps = [artifact_keys.rotate(seconds_max=0) for _ in range(12)]
    assert sum(one.bodies for one in steps) == stale
    assert sum(one.objects for one in steps) == 4
    assert not steps[0].complete
    assert any(one.complete for one in steps)
    with_keys(monkeypatch, "new=env:KEY_NEW")
    assert {digest: artifacts.read(run.id, digest) for digest in texts} == texts
    assert (artifacts.read(run.id, latest), artifacts.kept_outcome(run.id, 1)) == (b"latest", b"learnt")
    assert artifact_keys.rotate() == artifact_keys.Rotated("new", complete=True)


def test_a_key_that_is_missing_is_named_and_keeps_nobody_else_from_their_bytes(store, run, monkeypatch):
    with_keys(monkeypatch, "old=env:KEY_OLD")
    digests = [kept(run, b"small"), kept(run, b"L" * LARGE)]
    with_keys(monkeypatch, "new=env:KEY_NEW")
    for digest in digests:
        with pytest.raises(keyring.KeyUnavailable, match="'old'"):
            artifacts.read(run.id, digest)
    made = artifact_keys.rotate()
    assert (made.failed >= 2, made.complete) == (True, True)
    with_keys(monkeypatch, "")
    with pytest.raises(Invalid, match="ARTIFACT_KEYS"):
        artifact_keys.rotate()


def test_a_held_body_is_sealed_anew_and_not_changed_otherwise(store, run, monkeypatch):
    digest = kept(run, b"held")
    holds.place(project=run.project_id, scope="run", target=str(run.id), reason="r", by=Actor(id="lea", type="human"))
    with_keys(monkeypatch, "new=env:KEY_NEW,old=env:KEY_OLD")
    assert artifact_keys.rotate().bodies >= 1
    assert artifacts.read(run.id, digest) == b"held"
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL kernel.reseal = 'off'")  # the transaction of a rotation ends; that of a test goes on
    for change in ({"body": b"x"}, {"body": None, "purged_at": "2026-01-01T00:00Z"}):
        with pytest.raises(IntegrityError, match="legal hold"), transaction.atomic():
            Artifact.objects.filter(digest=digest).update(**change)


def test_one_object_that_cannot_be_read_holds_up_no_other_and_goes_when_nobody_refers_to_it(store, run, monkeypatch):
    with_keys(monkeypatch, "old=env:KEY_OLD")
    purged = kept(run, b"p" * LARGE)
    artifacts.stage(b"s" * LARGE)
    objects.keep_position(artifacts.SWEEP, "")
    with_keys(monkeypatch, "new=env:KEY_NEW")
    Artifact.objects.filter(digest=purged).update(body=None, purged_at="2026-01-01T00:00Z")
    late = artifacts.stage(b"l" * LARGE)
    artifacts.sweep(NOW)
    assert (count(store, "sha256"), count(store, "doomed")) == (0, 3)
    with_keys(monkeypatch, "")
    artifacts.claim(run.id, Artifact.Kind.RESULT, [late])
    assert (artifacts.sweep(NOW), count(store, "doomed")) == (2, 1), "what is claimed waits for its key"
    with_keys(monkeypatch, "new=env:KEY_NEW")
    assert (artifacts.sweep(NOW), count(store, "doomed")) == (0, 0)
    assert artifacts.read(run.id, late.digest) == b"l" * LARGE


def test_what_was_moved_aside_unread_is_read_once_its_key_is_back(store, run, monkeypatch):
    with_keys(monkeypatch, "old=env:KEY_OLD")
    staged = artifacts.stage(b"m" * LARGE)
    with_keys(monkeypatch, "")
    artifacts.sweep(NOW)
    artifacts.claim(run.id, Artifact.Kind.RESULT, [staged])
    with_keys(monkeypatch, "old=env:KEY_OLD")
    assert artifacts.read(run.id, staged.digest) == b"m" * LARGE


def test_good_bytes_win_over_those_under_a_lost_key(store, run, monkeypatch):
    with_keys(monkeypatch, "old=env:KEY_OLD")
    artifacts.stage(b"g" * LARGE)
    with_keys(monkeypatch, "new=env:KEY_NEW")
    assert artifacts.read(run.id, kept(run, b"g" * LARGE)) == b"g" * LARGE


def test_keys_of_secrets_in_calls_that_are_not_over_are_named(monkeypatch):
    scene = make_scene(allow=False)
    row = scene.row()
    words = artifacts.stage_json({"pin": "secret:sealed:old:AAAA"})
    artifacts.claim(row.run_id, Artifact.Kind.ARGUMENTS, [words])
    configuration = {"secret_arguments": {"pin": {}}}
    Tool.objects.filter(id=row.tool_id).update(configuration=configuration)
    monkeypatch.setattr(artifacts, "read", lambda *_: words.data)
    assert artifact_keys.keys_of_words("new") == ({"old": 1}, True)
    assert artifact_keys.keys_of_words("old") == ({}, True)

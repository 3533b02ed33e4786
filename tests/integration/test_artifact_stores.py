"""The same promises of both object stores: local files, and S3 (moto's server)."""

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

from kernel_project.primitives.errors import NotFound
from runs.boundary import artifacts
from runs.models import Artifact, Run
from tests.boundary_scene import make_project, make_run
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


@pytest.fixture(params=["file", "s3"])
def store(request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    if request.param == "s3":
        for name, value in S3.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("AWS_ENDPOINT_URL", request.getfixturevalue("s3"))
    url = tmp_path.as_uri() if request.param == "file" else f"s3://artifacts/{tmp_path.name}"
    monkeypatch.setattr(settings, "ARTIFACT_URL", url)
    artifacts._store.cache_clear()
    yield artifacts._store()
    artifacts._store.cache_clear()


@pytest.fixture
def run() -> Run:
    return make_run(make_project())


def kept(run: Run, data: bytes) -> str:
    staged = artifacts.stage(data)
    artifacts.claim(run.id, Artifact.Kind.RESULT, [staged])
    return staged.digest


def objects(store: obstore.store.ObjectStore, prefix: str) -> int:
    return sum(len(batch) for batch in obstore.list(store, prefix=prefix))


def test_bytes_come_back_and_are_stored_once(store, run):
    first, again = kept(run, b"x" * LARGE), kept(make_run(make_project()), b"x" * LARGE)
    assert (first, objects(store, "sha256")) == (again, 1)
    assert artifacts.read(run.id, first) == b"x" * LARGE


def test_damaged_bytes_are_never_handed_out(store, run):
    digest = kept(run, b"y" * LARGE)
    obstore.put(store, artifacts._path(digest), b"z" * LARGE)
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
    assert objects(store, "sha256") + objects(store, "doomed") == 0


def test_a_worker_that_died_between_object_and_row_leaves_nothing(store):
    artifacts.stage(b"b" * LARGE)
    assert artifacts.sweep() == 0, "it may be about to get its row"
    assert objects(store, "sha256") == 1
    assert (artifacts.sweep(NOW), objects(store, "doomed")) == (0, 1), "moved aside first"
    assert artifacts.sweep() == 0, "its time aside begins when it is moved"
    assert artifacts.sweep(NOW) == 1


def test_bytes_that_are_claimed_while_the_sweep_is_at_work_come_back(store, run):
    """Somebody found the object there, and claims it only after it was moved aside."""
    staged = artifacts.stage(b"c" * LARGE)
    artifacts.sweep(NOW)
    assert objects(store, "sha256") == 0
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

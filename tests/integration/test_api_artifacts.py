"""Downloading what a run refers to."""

from __future__ import annotations

import pytest
from django.db import transaction

from runs.boundary import artifacts
from runs.models import Artifact
from tests.api_client import Api, api_for, is_problem
from tests.api_scene import Scene, make_run, make_scene

pytestmark = [pytest.mark.django_db(transaction=True)]
LARGE = b"0123456789" * 10_000  # beyond what a row holds: it is in the object store


@pytest.fixture
def scene() -> Scene:
    return make_scene()


@pytest.fixture
def api(scene) -> Api:
    return api_for(scene.project, "artifacts:read")


def keep(scene: Scene, data: bytes) -> str:
    staged = artifacts.stage(data, "text/html")
    with transaction.atomic():
        artifacts.claim(scene.run.id, Artifact.Kind.RESULT, [staged])
    return staged.digest


@pytest.mark.parametrize("data", [b"<script>alert(1)</script>", LARGE, b""])
def test_the_bytes_come_as_an_attachment_that_no_browser_opens(api, scene, data):
    answer = api.get(f"/runs/{scene.run.id}/artifacts/{keep(scene, data)}")
    assert (answer.status_code, answer.content) == (200, data)
    assert answer["Content-Type"] == "application/octet-stream"
    assert answer["Content-Disposition"].startswith("attachment")
    assert answer["X-Content-Type-Options"] == "nosniff"
    assert "sandbox" in answer["Content-Security-Policy"]


@pytest.mark.parametrize(
    ("wanted", "status", "part"),
    [
        ("bytes=0-9", 206, LARGE[:10]),
        ("bytes=99990-", 206, LARGE[-10:]),
        ("bytes=-5", 206, LARGE[-5:]),
        ("bytes=99999-200000", 206, LARGE[-1:]),
        ("bytes=-999999", 206, LARGE),
        ("bytes=5-3", 200, LARGE),
        ("bytes=0-1,4-5", 200, LARGE),
        ("lines=1-2", 200, LARGE),
        ("bytes=-", 200, LARGE),
    ],
)
def test_a_range_is_answered_with_that_part(api, scene, wanted, status, part):
    path = f"/api/v1/runs/{scene.run.id}/artifacts/{keep(scene, LARGE)}"
    answer = api.client.get(path, headers=api.headers | {"Range": wanted})
    assert (answer.status_code, answer.content) == (status, part)


def test_a_range_beyond_the_end_is_416(api, scene):
    path = f"/runs/{scene.run.id}/artifacts/{keep(scene, LARGE)}"
    assert is_problem(api.send("GET", path, Range="bytes=100000-"), 416, "range_not_satisfiable")
    assert is_problem(api.send("GET", path, Range="bytes=-0"), 416, "range_not_satisfiable")


def test_only_a_run_that_refers_to_the_bytes_gives_them(api, scene):
    other = make_run(scene.version)
    assert is_problem(api.get(f"/runs/{other.id}/artifacts/{keep(scene, LARGE)}"), 404, "not_found")


@pytest.mark.parametrize("digest", ["0" * 63, "0" * 65, "G" * 64, "A" * 64, ".."])
def test_what_is_no_digest_is_refused(api, scene, digest):
    assert is_problem(api.get(f"/runs/{scene.run.id}/artifacts/{digest}"), 422, "invalid_request")

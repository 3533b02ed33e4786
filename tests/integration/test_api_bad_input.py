"""What the JSON API says to requests that are wrong: one form, the path of the mistake, nothing changed (C70)."""

from __future__ import annotations

import json

import pytest
from django.db import OperationalError, connection
from django.test import Client

from runs.models import Run
from tests.api_client import Api, api_for, is_problem
from tests.api_scene import Scene, make_scene
from tests.waiting import until_sync

pytestmark = [pytest.mark.django_db(transaction=True)]
MIB = 1024 * 1024


@pytest.fixture
def scene() -> Scene:
    return make_scene()


@pytest.fixture
def api(scene) -> Api:
    return api_for(scene.project)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ('{"agent": "a", "input": "go", "version": NaN}', "$.version"),
        ('{"agent": "a", "input": Infinity}', "$.input"),
        ('{"agent": "a", "input": -Infinity}', "$.input"),
        ('{"agent": "a", "input": ["x", [1e400]]}', "$.input[1][0]"),
        ('{"agent": "a", "input": {"score": -1e400}}', "$.input.score"),
        ('{"agent": "a", "input": "x", "input": "y"}', "$.input"),
        ('{"agent": "a", "input": "\\u0000"}', "$.input"),
        ('{"agent": "a", "in\\u0000put": "x"}', "$"),
        ('{"agent": "a", "input": "\\ud800"}', "$.input"),
        ('{"agent": "a", "input": "x", "version": "1"}', "$.version"),
        ('{"agent": "a", "input": "x", "version": 1.5}', "$.version"),
        ('{"agent": "a", "input": "x", "version": 9007199254740993.0}', "$.version"),
        ('{"agent": "a", "input": "x", "version": true}', "$.version"),
        ('{"agent": "a", "input": "x", "version": 0}', "$.version"),
        ('{"agent": "a", "input": 7}', "$.input"),
        ('{"agent": "a", "input": null}', "$.input"),
        ('{"agent": "a"}', "$.input"),
        ('{"agent": "", "input": "x"}', "$.agent"),
        ('{"agent": "a", "input": "x", "extra": 1}', "$.extra"),
        ("[]", "$"),
        ('"text"', "$"),
        ("null", "$"),
        ("7", "$"),
        ("", "$"),
        (json.dumps({"agent": "a", "input": "x" * (512 * 1024 + 1)}), "$.input"),
    ],
    ids=lambda value: value[:40],
)
def test_the_path_of_the_mistake_is_named(api, text, path):
    answer = api.send("POST", "/runs", text)
    assert is_problem(answer, 422, "invalid_request")
    assert [(error["in"], error["path"]) for error in answer.data["errors"]] == [("body", path)]
    assert Run.objects.count() == 1


@pytest.mark.usefixtures("temporal_server")
def test_an_integer_is_one_however_it_is_spelt(api, scene):
    text = f'{{"agent": "{scene.version.agent.name}", "input": "go", "version": %s}}'
    assert [api.send("POST", "/runs", text % number).status_code for number in ("1.0", "10e-1", "1")] == [202] * 3


@pytest.mark.parametrize(
    "text",
    [b"{", b"{'a': 1}", b'{"a": 1,}', b'{"a": 1} x', b"\xff\xfe", b"\xef\xbb\xbf{}", b"[" * 100_000, b'{"a":' * 50_000],
    ids=range(8),
)
def test_what_is_no_json_is_refused_with_one_code(api, text):
    assert is_problem(api.send("POST", "/runs", text), 422, "bad_json")


def test_deep_nesting_is_refused(api):
    text = '{"agent": "a", "input": ' + "[" * 40 + "]" * 40 + "}"
    assert is_problem(api.send("POST", "/runs", text), 422, "invalid_request")


@pytest.mark.parametrize("path", ["/runs", "/runs/x/cancel", "/approvals/x/decide", "/operations/x/reconcile"])
def test_a_body_over_one_mebibyte_is_413_whatever_it_holds(api, path):
    assert is_problem(api.send("POST", path, b" " * (MIB + 1)), 413, "body_too_large")
    assert is_problem(Api().send("POST", path, b"[" * (MIB + 1)), 413, "body_too_large")


def test_a_body_that_is_not_said_to_be_json_is_415(api):
    answer = Client().post("/api/v1/runs", {"agent": "a"}, headers=api.headers)
    assert answer.status_code == 415
    assert answer.json()["code"] == "unsupported_media_type"


def test_unknown_and_doubled_parameters_are_refused(api):
    answer = api.get("/runs", stat="failed")
    assert is_problem(answer, 422, "invalid_request")
    assert answer.data["errors"][0]["path"] == "stat"
    assert is_problem(api.get("/runs", limit=["1", "2"]), 422, "invalid_request")
    assert is_problem(api.get("/runs", state="failed\x00"), 422, "invalid_request")
    assert is_problem(api.get("/runs", agent="a\x00"), 422, "invalid_request")


def test_unknown_paths_and_methods_are_problems_too(api, scene):
    for path in ("/nothing", "/runs/", "/runs/x/y/z", "/runs/%00"):
        assert api.get(path).data["status"] in (404, 422), path
        assert api.get(path)["Content-Type"] == "application/problem+json"
    assert is_problem(api.get("/nothing"), 404, "not_found")
    wrong = api.send("DELETE", f"/runs/{scene.run.id}")
    assert is_problem(wrong, 405, "method_not_allowed")
    assert wrong["Allow"] == "GET"
    assert is_problem(api.send("PATCH", "/openapi.json"), 405, "method_not_allowed")


def test_head_answers_like_get(api):
    answer = api.client.head("/api/v1/runs", headers=api.headers)
    assert (answer.status_code, answer.content) == (200, b"")


def test_a_foreign_host_is_refused_in_the_same_form(api):
    answer = Client(raise_request_exception=False).get("/api/v1/runs", headers={"Host": "evil.example"})
    assert answer.status_code == 400
    assert answer.json()["code"] == "bad_request"


def test_a_crash_tells_nothing_but_its_request_id(api, monkeypatch, caplog):
    def crash(*_, **__):
        raise RuntimeError("the secret is hunter2")

    monkeypatch.setattr("runs.selectors.runs", crash)
    answer = api.get("/runs")
    assert is_problem(answer, 500, "internal_error")
    assert "hunter2" not in answer.content.decode()
    assert answer.data["request_id"] in caplog.text


def reachable() -> bool:
    """The pool has noticed that the server is back."""
    connection.close()
    try:
        connection.ensure_connection()
    except OperationalError:
        return False
    return True


def test_without_a_database_it_is_503(api, postgres):
    with postgres.stopped():
        answer = api.get("/runs")
    until_sync(reachable)
    assert is_problem(answer, 503, "database_unavailable")
    assert answer["Retry-After"]

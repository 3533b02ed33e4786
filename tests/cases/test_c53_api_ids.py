"""C53. Very long or odd ids from outside: a clear 422 or a run, never a 500, and twins stay different."""

from __future__ import annotations

import secrets

import pytest

from runs.models import Run
from tests.api_client import Api, api_for, is_problem
from tests.kernel import make_agent, make_project, says

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("temporal_server")]


@pytest.fixture
def project():
    return make_project()


@pytest.fixture
def agent(project):
    return make_agent(project, [says("done")]).agent.name


@pytest.fixture
def api(project) -> Api:
    return api_for(project)


def start(api: Api, agent: str, key: str):
    return api.post("/runs", {"agent": agent, "input": "go"}, Idempotency_Key=key)


@pytest.mark.parametrize("key", [secrets.token_hex(127), secrets.token_hex(500), "a" * 1000, "é", "k" * 255])
def test_a_key_up_to_the_limit_finds_its_run_again(api, agent, key):
    first = start(api, agent, key)
    assert first.status_code == 202
    assert start(api, agent, key).data == first.data


@pytest.mark.parametrize("key", [secrets.token_hex(1353), secrets.token_hex(3000), "a" * 6000, "a\x00b"])
def test_a_key_beyond_it_is_refused(api, agent, key):
    assert is_problem(start(api, agent, key), 422, "invalid_request")
    assert not Run.objects.exists()


def test_twins_are_different_keys(api, agent):
    twins = ["key", "KEY", "Key", "key ", " key", "k ey", "key\t"]
    assert len({start(api, agent, key).data["id"] for key in twins}) == len(twins)


@pytest.mark.parametrize("name", ["x" * 101, "x" * 2705, "x" * 6000])
def test_a_long_agent_name_is_refused(api, name):
    assert is_problem(start(api, name, "k"), 422, "invalid_request")
    assert is_problem(api.get("/runs", agent=name), 422, "invalid_request")


@pytest.mark.parametrize("name", ["x" * 101, "../../etc", "a/b", "ü", "A", "with space"])
def test_a_workspace_that_cannot_be_is_refused(api, agent, name):
    answer = api.post("/runs", {"agent": agent, "input": "go", "workspace": name})
    assert answer.status_code == 422


@pytest.mark.parametrize(
    "cursor", ["x" * 301, "%00", "e30", "WzFd", "bnVsbA", "W10", "!", "é", "WyJ4Il0", "WyJcdTAwMDAiXQ"]
)
@pytest.mark.parametrize("path", ["/runs", "/operations", "/approvals", "/agents", "/tools"])
def test_a_forged_cursor_is_refused_or_harmless(api, path, cursor):
    assert api.get(path, cursor=cursor).status_code in (200, 422)


@pytest.mark.parametrize("given", ["x" * 65, "a b", "a\r\nb", "é", ""])
def test_a_foreign_request_id_is_kept_only_if_it_is_harmless(api, given):
    answer = api.client.get("/api/v1/runs", headers=api.headers | {"X-Request-Id": given})
    assert answer.status_code == 200
    assert answer["X-Request-Id"] != given
    kept = api.client.get("/api/v1/runs", headers=api.headers | {"X-Request-Id": "abc-1.2_3"})
    assert kept["X-Request-Id"] == "abc-1.2_3"

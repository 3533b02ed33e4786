"""C73. An Idempotency-Key stands for one request of one caller: a repeat finds its run, another body is refused."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connection

from runs import keys
from runs.models import IdempotencyKey, Run
from tests.api_client import Api, api_for, is_problem
from tests.kernel import make_agent, make_project, says

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("temporal_server")]
RACERS = 10
REQUESTS = 50


@pytest.fixture
def project():
    return make_project()


@pytest.fixture
def agent(project):
    return make_agent(project, [says("done")]).agent.name


@pytest.fixture
def api(project) -> Api:
    return api_for(project, "runs:start", "runs:read")


def start(api: Api, agent: str, text: str = "go", key: str = "k"):
    return api.post("/runs", {"agent": agent, "input": text}, Idempotency_Key=key)


def test_another_body_is_422_after_the_first_is_done(api, agent):
    first = start(api, agent)
    assert is_problem(start(api, agent, "something else"), 422, "idempotency_key_reused")
    assert start(api, agent).data == first.data
    assert Run.objects.count() == 1


def test_while_the_first_is_in_progress_same_body_is_409_and_another_422(api, agent):
    run = start(api, agent).data["id"]
    Run.objects.filter(id=run).update(state="starting", started_at=None)
    in_progress = start(api, agent)
    assert is_problem(in_progress, 409, "idempotency_key_in_progress")
    assert is_problem(start(api, agent, "something else"), 422, "idempotency_key_reused")


def test_reordered_members_are_the_same_body(api, agent):
    first = start(api, agent)
    again = api.send("POST", "/runs", f'{{"input":  "go", "agent": "{agent}"}}', Idempotency_Key="k")
    assert again.data == first.data


def test_a_default_that_is_written_out_is_the_same_body(api, agent):
    first = start(api, agent)
    again = api.post("/runs", {"agent": agent, "input": "go", "version": None}, Idempotency_Key="k")
    assert again.data == first.data


def test_keys_are_not_shared_between_tenants_or_callers(api, project, agent):
    other_project = make_project()
    other_agent = make_agent(other_project, [says("x")]).agent.name
    runs = [
        start(api, agent).data["id"],
        start(api_for(project, "runs:start"), agent).data["id"],
        start(api_for(other_project, "runs:start"), other_agent).data["id"],
    ]
    assert len(set(runs)) == 3


def test_a_try_that_failed_before_it_began_may_be_repeated(api, agent, temporal_server):
    with temporal_server.stopped():
        assert start(api, agent).status_code == 503
    Run.objects.filter(state="starting").update(created_at="2020-01-01T00:00:00Z")
    assert start(api, agent).status_code == 202
    assert Run.objects.filter(state="running").count() == 1


def test_a_refused_request_leaves_its_key_free(api, agent):
    assert start(api, "nobody").status_code == 404
    assert not IdempotencyKey.objects.exists()
    assert start(api, agent).status_code == 202


def test_without_a_key_each_request_is_a_run(api, agent):
    answers = [api.post("/runs", {"agent": agent, "input": "go"}) for _ in range(2)]
    assert len({answer.data["id"] for answer in answers}) == 2


def test_an_empty_key_is_a_mistake(api, agent):
    assert is_problem(start(api, agent, key=""), 422, "invalid_request")


def test_many_at_once_are_one_run(project, agent):
    _, token = keys.create(project=project.slug, name="k", scopes=["runs:start"])

    def one(_: int) -> int:
        try:
            return start(Api(token), agent).status_code
        finally:
            connection.close()

    with ThreadPoolExecutor(RACERS) as pool:
        answers = set(pool.map(one, range(REQUESTS)))
    assert answers <= {202, 409}
    assert 202 in answers
    assert Run.objects.count() == 1

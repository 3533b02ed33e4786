"""C71. A number that no column can hold is refused at the door, and a bad row never takes a list away."""

from __future__ import annotations

import json

import pytest
from django.db import connection

from approvals.models import Approval
from runs.models import AgentVersion, Operation, Run
from tests.api_client import Api, api_for, is_problem
from tests.api_scene import Scene, ask, make_operation, make_run, make_scene

pytestmark = [pytest.mark.django_db(transaction=True)]
LARGE = [2**31, 2**53 + 1, 2**63, 10**30, -1, "1" * 5000]
LISTS = ["/runs", "/operations", "/approvals", "/agents", "/tools"]


@pytest.fixture
def scene() -> Scene:
    return make_scene()


@pytest.fixture
def api(scene) -> Api:
    return api_for(scene.project)


@pytest.mark.parametrize("number", LARGE, ids=lambda number: str(number)[:12])
def test_as_a_member_of_a_body(api, scene, number):
    text = f'{{"agent": "{scene.version.agent.name}", "input": "go", "version": {number}}}'
    answer = api.send("POST", "/runs", text)
    assert is_problem(answer, 422, "invalid_request")
    assert [error["path"] for error in answer.data["errors"]] == ["$.version"]


@pytest.mark.parametrize(
    "number", [*LARGE, "1_0", "1e2", "0x1", "１", "+1", " 1", "1.0", "", "NaN"], ids=lambda n: str(n)[:12]
)
def test_as_a_limit(api, number):
    for path in LISTS:
        answer = api.get(path, limit=number)
        assert is_problem(answer, 422, "invalid_request")
        assert answer.data["errors"][0] | {"message": ""} == {"in": "query", "path": "limit", "message": ""}


@pytest.mark.parametrize("number", LARGE, ids=lambda number: str(number)[:12])
def test_as_a_sequence(api, scene, number):
    answer = api.get(f"/runs/{scene.run.id}/events", after=number)
    possible = number in (2**31, 2**53 + 1)
    assert answer.status_code == (200 if possible else 422)


def test_the_largest_sequence_is_a_position_like_any(api, scene):
    page = api.get(f"/runs/{scene.run.id}/events", after=2**63 - 1)
    assert (page.status_code, page.data["items"]) == (200, [])


@pytest.mark.parametrize("number", LARGE, ids=lambda number: str(number)[:12])
@pytest.mark.parametrize("path", ["/runs/{}", "/runs/{}/events", "/operations/{}", "/approvals/{}"])
def test_as_an_id(api, path, number):
    assert is_problem(api.get(path.format(number)), 422, "invalid_request")


def test_exact_integers_come_back_exactly(api, scene):
    usage = {"input_tokens": 2**53 + 1}
    Operation.objects.filter(id=scene.uncertain.id).update(usage=usage)
    assert api.get(f"/operations/{scene.uncertain.id}").data["usage"] == usage


def test_a_run_with_an_impossible_time_is_named_and_the_others_are_shown(api, scene):
    other = make_run(scene.version)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE runs_run SET started_at = 'infinity' WHERE id = %s", [other.id])
    page = api.get("/runs").data
    assert [item["id"] for item in page["items"]] == [str(scene.run.id)]
    assert page["unreadable"] == [str(other.id)]


def test_a_request_with_an_impossible_time_is_named_and_the_others_are_shown(api, scene):
    other = ask(scene.run, make_operation(scene.run, 3, "awaiting_approval"))
    with connection.cursor() as cursor:
        sql = "UPDATE approvals_approval SET state = 'rejected', decided_at = 'infinity' WHERE id = %s"
        cursor.execute(sql, [other.id])
    page = api.get("/approvals").data
    assert [item["id"] for item in page["items"]] == [str(scene.approval.id)]
    assert page["unreadable"] == [str(other.id)]


def test_an_agent_whose_definition_nobody_understands_is_named(api, scene):
    AgentVersion.objects.filter(id=scene.version.id).update(definition={"surprise": 1})
    page = api.get("/agents")
    assert (page.status_code, page.data["items"]) == (200, [])
    assert page.data["unreadable"] == [str(scene.version.id)]
    assert api.get("/runs").data["items"][0]["model"] == ""


def test_an_operation_in_a_state_that_nobody_knows_is_named(api, scene):
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE runs_operation DISABLE TRIGGER runs_operation_moves")
        cursor.execute("UPDATE runs_operation SET kind = 'magic' WHERE id = %s", [scene.uncertain.id])
        cursor.execute("ALTER TABLE runs_operation ENABLE TRIGGER runs_operation_moves")
    page = api.get("/operations").data
    assert page["unreadable"] == [str(scene.uncertain.id)]
    assert len(page["items"]) == 1


def test_an_event_whose_text_is_broken_is_shown_without_it(api, scene):
    with connection.cursor() as cursor:
        cursor.execute("SET session_replication_role = replica")
        cursor.execute("UPDATE outbox_event SET envelope = '{' WHERE sequence = 1")
        cursor.execute("SET session_replication_role = origin")
    items = api.get(f"/runs/{scene.run.id}/events").data["items"]
    assert [item["envelope"] is None for item in items] == [True, False, False]


def test_nothing_of_this_was_stored(api, scene):
    before = (Run.objects.count(), Approval.objects.count())
    api.send("POST", "/runs", json.dumps({"agent": scene.version.agent.name, "input": "go", "version": 10**30}))
    assert (Run.objects.count(), Approval.objects.count()) == before

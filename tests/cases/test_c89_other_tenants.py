"""C89. Another tenant's things do not exist: same answer as for an id that nobody has, and nothing is written."""

from __future__ import annotations

import uuid

import pytest

from approvals.models import Decision
from kernel_project.web.callers import SCOPES
from outbox.models import Event, Stream
from runs.models import Run
from tests.api_client import Api, api_for, is_problem, make_person
from tests.api_routes import routes
from tests.api_scene import make_scene
from tests.kernel import make_project

pytestmark = [pytest.mark.django_db(transaction=True)]
VIEW_SCOPES = tuple(scope for scope in SCOPES if scope.endswith(":read"))


def without_request_id(body: dict) -> dict:
    return {name: value for name, value in body.items() if name != "request_id"}


def test_every_route_answers_a_foreign_id_like_an_absent_one():
    mine, stranger = make_scene(), api_for(make_project())
    absent = {name: str(uuid.uuid4()) for name in mine.ids()} | {"digest": "0" * 64}
    for route in routes():
        if "{" in route.path:
            foreign, nobodys = route.call(stranger, mine.ids()), route.call(stranger, absent)
            assert (foreign.status_code, nobodys.status_code) == (404, 404), route
            assert without_request_id(foreign.data) == without_request_id(nobodys.data), route


def test_no_list_shows_another_tenants_rows():
    make_scene()
    stranger = api_for(make_project())
    for path in ("/runs", "/operations", "/approvals", "/agents", "/tools"):
        assert stranger.get(path).data["items"] == [], path
    assert stranger.get("/lag").data["pending"] == 0


def test_another_tenants_agent_is_unknown():
    mine, stranger = make_scene(), api_for(make_project())
    answer = stranger.post("/runs", {"agent": mine.version.agent.name, "input": "go"})
    assert is_problem(answer, 404, "unknown_agent")


def test_nothing_is_written_into_the_victims_records():
    mine, stranger = make_scene(), api_for(make_project())
    victims = Event.objects.filter(run_id__in=Stream.objects.filter(project=mine.project.slug).values("run_id"))
    before = (victims.count(), Run.objects.get(id=mine.run.id).cancel_requested_at)
    for route in routes():
        route.call(stranger, mine.ids())
    assert (victims.count(), Run.objects.get(id=mine.run.id).cancel_requested_at) == before
    assert not Decision.objects.exists()


def test_a_key_cannot_name_another_project():
    mine, other = make_scene(), make_project()
    assert is_problem(api_for(mine.project).get("/runs", project=other.slug), 404, "not_found")
    assert is_problem(api_for(mine.project).get("/runs", project="no-such"), 404, "not_found")


def test_a_view_only_key_reads_everything_and_changes_nothing():
    mine = make_scene()
    viewer = api_for(mine.project, *VIEW_SCOPES)
    for route in routes():
        answer = route.call(viewer, mine.ids())
        if route.method == "get":
            assert answer.status_code == 200, (route, answer.content)
        else:
            assert is_problem(answer, 403, "missing_scope"), route
    assert not Decision.objects.exists()


def test_every_route_refuses_a_key_that_has_every_scope_but_its_own():
    mine, person = make_scene(), make_person()
    for route in routes():
        others = [scope for scope in SCOPES if scope != route.scope]
        answer = route.call(api_for(mine.project, *others, user=person), mine.ids())
        assert is_problem(answer, 403, "missing_scope"), route
        assert answer.data["scope"] == route.scope


def test_every_route_wants_to_know_who_asks():
    mine, nobody = make_scene(), Api()
    for route in routes():
        answer = route.call(nobody, mine.ids())
        assert is_problem(answer, 401, "unauthenticated"), route
        assert answer["WWW-Authenticate"].startswith("Bearer")

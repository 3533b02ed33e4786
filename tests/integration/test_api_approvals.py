"""Deciding and reconciling over the JSON API."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connection

from approvals.models import Approval, Decision
from outbox.models import Event
from runs.models import Project
from tests import console
from tests.api_client import Api, api_for, is_problem, make_person
from tests.api_scene import Scene, make_scene, passed

pytestmark = [pytest.mark.django_db(transaction=True)]
RACERS = 8


@pytest.fixture
def scene() -> Scene:
    return make_scene()


@pytest.fixture
def api(scene) -> Api:
    return api_for(scene.project)


def decide(api: Api, scene: Scene, verdict: str, reason: str = ""):
    return api.post(f"/approvals/{scene.approval.id}/decide", {"verdict": verdict, "reason": reason})


def test_the_queue_shows_what_waits_and_the_detail_the_exact_call(api, scene):
    [item] = api.get("/approvals", state="waiting").data["items"]
    assert item["id"] == str(scene.approval.id)
    assert "binding" not in item
    detail = api.get(f"/approvals/{scene.approval.id}").data
    assert hashlib.sha256(detail["binding"].encode()).hexdigest() == detail["binding_hash"]
    assert '"text":"call 2"' in detail["binding"]
    assert detail["deadline_at"] > detail["requested_at"]
    assert detail["decisions"] == []


def test_a_yes_is_written_with_the_keys_person_whatever_the_body_says(scene):
    person = make_person("alice")
    api = api_for(scene.project, "approvals:decide", user=person)
    path = f"/approvals/{scene.approval.id}/decide"
    forged = api.post(path, {"verdict": "approve", "decided_by": "bob", "actor": "bob"})
    assert is_problem(forged, 422, "invalid_request")
    assert {error["path"] for error in forged.data["errors"]} == {"$.decided_by", "$.actor"}
    answer = decide(api, scene, "approve", "fine")
    assert (answer.data["state"], answer.data["decided_by"], answer.data["reason"]) == ("granted", "alice", "fine")
    assert [(one["actor"], one["via"], one["applied"]) for one in answer.data["decisions"]] == [("alice", "api", True)]


def test_the_same_person_again_gets_the_first_answer_and_another_verdict_409(api, scene):
    first = decide(api, scene, "approve")
    assert decide(api, scene, "approve").data["decided_at"] == first.data["decided_at"]
    other = decide(api, scene, "reject")
    assert is_problem(other, 409, "already_decided")
    assert (other.data["state"], other.data["decided_by"]) == ("granted", first.data["decided_by"])


def test_after_the_deadline_it_is_409_and_on_record(api, scene):
    passed(scene.approval)
    assert is_problem(decide(api, scene, "approve"), 409, "expired")
    assert Decision.objects.get().refusal == "expired"


def test_who_started_the_run_may_not_approve_it_with_any_key():
    alice = make_person("alice")
    scene = make_scene(started_by="alice", four_eyes=True)
    for _ in range(2):
        own = api_for(scene.project, "approvals:decide", user=alice)
        assert is_problem(decide(own, scene, "approve"), 403, "may_not_decide")


def test_only_members_of_the_group_decide():
    scene = make_scene(group="finance")
    outsider = make_person("bob", superuser=False)
    member = make_person("carol", superuser=False, groups=("finance",))
    permit(outsider, member)
    assert is_problem(decide(api_for(scene.project, "approvals:decide", user=outsider), scene, "approve"), 403,
                      "may_not_decide")  # fmt: skip
    assert decide(api_for(scene.project, "approvals:decide", user=member), scene, "approve").status_code == 200


def permit(*people) -> None:
    from django.contrib.auth.models import Permission

    for person in people:
        person.user_permissions.add(Permission.objects.get(codename="decide_approval"))


def test_of_many_at_once_exactly_one_is_applied(scene):
    """C27, over the API."""
    racers = [api_for(scene.project, "approvals:decide", user=make_person()) for _ in range(RACERS)]

    def race(number: int):
        try:
            return decide(racers[number], scene, "approve" if number % 2 else "reject").status_code
        finally:
            connection.close()

    with ThreadPoolExecutor(RACERS) as pool:
        answers = sorted(pool.map(race, range(RACERS)))
    assert answers == [200] + [409] * (RACERS - 1)
    assert Decision.objects.filter(applied=True).count() == 1
    assert Event.objects.filter(type__in=("approval.granted", "approval.rejected")).count() == 1


def waiting_call():
    """A call of a real tool that waits, with the person who may decide it."""
    console_approval = console.waiting_run(tool="pay", amount=12, to="ACME")
    project = Project.objects.get(slug=console_approval.project)
    return console_approval, api_for(project, user=make_person("editor"))


def test_an_edit_is_a_new_request_and_only_that_one_can_be_decided():
    approval, api = waiting_call()
    answer = api.post(
        f"/approvals/{approval.id}/edit", {"arguments": {"amount": 9, "to": "ACME"}, "reason": "too much"}
    )
    assert answer.status_code == 201
    assert (answer.data["state"], answer.data["supersedes"], answer.data["edited_by"]) == (
        "waiting", str(approval.id), "editor",
    )  # fmt: skip
    assert '"arguments":{"amount":9,"to":"ACME"}' in answer.data["binding"]
    old = api.get(f"/approvals/{approval.id}").data
    assert (old["state"], old["superseded_by"]) == ("superseded", answer.data["id"])
    assert is_problem(api.post(f"/approvals/{approval.id}/decide", {"verdict": "approve"}), 409, "already_decided")
    assert api.post(f"/approvals/{answer.data['id']}/decide", {"verdict": "approve"}).data["state"] == "granted"


def test_an_edit_that_is_none_is_refused():
    approval, api = waiting_call()
    path = f"/approvals/{approval.id}/edit"
    for body in ({"arguments": []}, {"arguments": "x"}, {}, {"arguments": {"amount": 1}, "verdict": "approve"}):
        assert is_problem(api.post(path, body), 422, "invalid_request")
    assert api.post(path, {"arguments": {"amount": 12, "to": "ACME"}}).status_code == 422
    assert Approval.objects.get(id=approval.id).state == "waiting"
    reader = api_for(Project.objects.get(slug=approval.project), "approvals:read", user=make_person("reader"))
    assert is_problem(reader.post(path, {"arguments": {"amount": 1}}), 403, "missing_scope")


def test_mine_is_what_i_may_say_yes_to_now():
    scene = make_scene(started_by="alice", four_eyes=True)
    alice, bob = (api_for(scene.project, "approvals:read", user=make_person(name)) for name in ("alice", "bob"))
    assert alice.get("/approvals", mine="true").data["items"] == []
    assert [one["id"] for one in bob.get("/approvals", mine="true").data["items"]] == [str(scene.approval.id)]
    passed(scene.approval)
    assert bob.get("/approvals", mine="true").data["items"] == []
    assert is_problem(bob.get("/approvals", mine="yes"), 422, "invalid_request")


def test_breaking_the_glass_needs_its_scope_the_policy_and_a_reason():
    scene = make_scene(group="finance", break_glass=True)
    path = f"/approvals/{scene.approval.id}/decide"
    emergency = {"verdict": "approve", "reason": "production is down", "break_glass": True}
    plain = api_for(scene.project, "approvals:decide", user=make_person("paul"))
    assert is_problem(plain.post(path, emergency), 403, "missing_scope")
    trusted = api_for(scene.project, "approvals:decide", "approvals:break_glass", user=make_person("tess"))
    assert trusted.post(path, emergency | {"reason": ""}).status_code == 422
    assert is_problem(trusted.post(path, {"verdict": "approve"}), 403, "may_not_decide")
    answer = trusted.post(path, emergency)
    assert (answer.data["state"], answer.data["decisions"][-1]["broke_glass"]) == ("granted", True)


def test_with_a_quorum_the_answer_says_how_many_votes_there_are():
    scene = make_scene(quorum=2)
    first, second = (api_for(scene.project, "approvals:decide", user=make_person(name)) for name in ("ann", "ben"))
    path = f"/approvals/{scene.approval.id}/decide"
    for api, state, votes in ((first, "waiting", 1), (first, "waiting", 1), (second, "granted", 2)):
        answer = api.post(path, {"verdict": "approve"})
        assert (answer.data["state"], answer.data["votes"], answer.data["quorum"]) == (state, votes, 2)


def test_reconcile_takes_a_named_persons_verdict_once(scene):
    api = api_for(scene.project, "operations:reconcile", "operations:read", user=make_person("alice"))
    [item] = api.get("/operations", state="uncertain").data["items"]
    path = f"/operations/{item['id']}/reconcile"
    answer = api.post(path, {"verdict": "occurred", "note": "seen in the shop", "result": "order 17"})
    assert (answer.data["state"], answer.data["verdict"]) == ("reconciled", "occurred")
    assert (answer.data["reconciled_by"], answer.data["note"]) == ("alice", "seen in the shop")
    again = api.post(path, {"verdict": "none", "note": "changed my mind"})
    assert is_problem(again, 409, "not_uncertain")
    assert again.data["state"] == "reconciled"


def test_reconcile_without_a_note_is_refused(scene, api):
    path = f"/operations/{scene.uncertain.id}/reconcile"
    assert is_problem(api.post(path, {"verdict": "none"}), 422, "invalid_request")
    assert is_problem(api.post(path, {"verdict": "none", "note": "  "}), 422, "invalid_request")
    assert is_problem(api.post(path, {"verdict": "maybe", "note": "x"}), 422, "invalid_request")


def test_bodies_of_an_operation_need_their_own_scope(scene):
    path = f"/operations/{scene.uncertain.id}"
    assert api_for(scene.project, "operations:read").get(path).data["arguments"] is None
    both = api_for(scene.project, "operations:read", "artifacts:read")
    assert both.get(path).data["arguments"] == {"text": "call 1"}


def test_lag_is_the_projects_own(scene, api):
    make_scene()
    lag = api.get("/lag").data
    assert (lag["pending"], lag["runs_behind"], lag["parked"]) == (3, 1, 0)
    assert lag["oldest_age_seconds"] >= 0
    assert lag["publisher_late"]

"""C44. Who started the run approves its call: refused on every path while four eyes are asked for."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.urls import reverse

from approvals import services
from approvals.models import Approval, Decision
from approvals.services import Refused
from runs.models import Run
from tests import console
from tests.api_client import api_for, is_problem
from tests.boundary_scene import committed, decider, make_scene, rule

pytestmark = pytest.mark.usefixtures("committed")
__all__ = ["committed"]


def asked_under_four_eyes():
    scene = make_scene("opaque", allow=False)
    rule(scene.project, "require", four_eyes=True, group="approvers")
    operation = scene.another(scene.run)
    return scene, Approval.objects.get(operation_id=operation.id)


@pytest.mark.parametrize(
    "who",
    [
        decider("starter", "approvers"),
        decider("Starter", "approvers", may_break_glass=True),
        decider("key of starter", "approvers", names=frozenset({"starter"})),
    ],
)
def test_own_request_is_refused_and_on_record(who):
    scene, asked = asked_under_four_eyes()
    with pytest.raises(Refused):
        services.decide(asked.id, scene.project.slug, who, "approve")
    assert Decision.objects.get(approval=asked).refusal == "may_not_decide"
    asked.refresh_from_db()
    assert asked.state == "waiting"


def test_a_second_account_of_the_same_person_is_the_same_person():
    User.objects.create(username="starter", email="s@example.com")
    User.objects.create(username="starter-admin", email="S@example.com", is_superuser=True)
    scene, asked = asked_under_four_eyes()
    with pytest.raises(Refused):
        services.decide(asked.id, scene.project.slug, decider("starter-admin", "approvers"), "approve")


def test_over_every_door_the_one_who_started_the_run_is_refused_and_it_is_on_record():
    """API key and session, the admin as a superuser, and the action on the list, which can only reject."""
    root = console.person("root-c44", superuser=True, groups=["approvers"])
    scene = make_scene("opaque", allow=False)
    Run.objects.filter(id=scene.run.id).update(started_by="root-c44")
    scene.run.started_by = "root-c44"
    rule(scene.project, "require", four_eyes=True, group="approvers", break_glass=True)
    asked = Approval.objects.get(operation_id=scene.another(scene.run).id)
    key, page = api_for(scene.project, "approvals:decide", "approvals:break_glass", user=root), console.logged_in(root)
    path = f"/approvals/{asked.id}/decide"
    assert is_problem(key.post(path, {"verdict": "approve"}), 403, "may_not_decide")
    emergency = {"verdict": "approve", "reason": "now", "break_glass": True}
    assert is_problem(key.post(path, emergency), 403, "may_not_decide")
    for verdict in ("approve", "break_glass"):
        page.post(reverse("admin:approvals_approval_decide", args=[asked.id]), {"verdict": verdict, "reason": "now"})
    form = {"action": "approve_selected", "_selected_action": [str(asked.id)], "reason": "x", "verdict": "approve"}
    page.post(reverse("admin:approvals_approval_changelist"), form)
    asked.refresh_from_db()
    assert asked.state == "waiting"
    tries = Decision.objects.filter(approval=asked).order_by("id").values_list("via", "actor", "refusal")
    assert list(tries) == [("api", "root-c44", "may_not_decide")] * 2 + [("admin", "root-c44", "may_not_decide")] * 2


def test_ones_own_request_may_be_rejected():
    scene, asked = asked_under_four_eyes()
    assert services.decide(asked.id, scene.project.slug, decider("starter", "approvers"), "reject").state == "rejected"


def test_somebody_else_may_approve():
    scene, asked = asked_under_four_eyes()
    assert services.decide(asked.id, scene.project.slug, decider("anna", "approvers"), "approve").state == "granted"

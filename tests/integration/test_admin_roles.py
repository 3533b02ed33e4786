"""Roles are groups that a migration makes; each can do its own work in the console and nobody else's."""

from __future__ import annotations

import importlib

import pytest
from django.contrib import admin
from django.contrib.auth.models import Group, Permission
from django.urls import reverse

from approvals.models import Approval
from runs.models import Operation, Run
from tests import console

pytestmark = pytest.mark.django_db(databases=["default", "temporality"])
ROLES = ("viewer", "operator", "approver", "auditor", "admin")


@pytest.fixture(autouse=True)
def roles():
    """As the migration makes them; another test may have emptied the tables since."""
    importlib.import_module("runs.migrations.0004_roles").fill_roles(Group, Permission)


def attempts(role):
    """What came of approving, resolving, cancelling and reading bodies, as that role."""
    client = console.logged_in(console.person(f"a-{role}", groups=[role]))
    approval, operation, other = console.waiting_run(amount=31337), console.uncertain_run(), console.waiting_run()
    home = client.get(reverse("admin:index"))
    assert "pending events" in home.content.decode()
    read = "31337" in client.get(reverse("admin:runs_operation_change", args=[approval.operation_id])).content.decode()
    client.post(reverse("admin:approvals_approval_decide", args=[approval.id]), {"verdict": "approve"})
    client.post(
        reverse("admin:runs_operation_resolve", args=[operation.id]), {"verdict": "none", "note": "looked it up"}
    )
    client.post(reverse("admin:runs_run_cancel", args=[other.run_id]), {"reason": "r"})
    done = {
        "decides": Approval.objects.get(id=approval.id).state == "granted",
        "resolves": Operation.objects.get(id=operation.id).state == "reconciled",
        "cancels": Run.objects.get(id=other.run_id).cancel_requested_at is not None,
        "reads": read,
        "audits": client.get(reverse("admin:admin_logentry_changelist")).status_code == 200,
        "people": client.get(reverse("admin:auth_user_add")).status_code == 200,
    }
    return {name for name, did in done.items() if did}


@pytest.mark.parametrize(
    ("role", "may"),
    [
        ("viewer", set()),
        ("operator", {"resolves", "cancels", "reads"}),
        ("approver", {"decides", "reads"}),
        ("auditor", {"reads", "audits"}),
        ("admin", {"decides", "resolves", "cancels", "reads", "audits", "people"}),
    ],
)
def test_a_role_does_its_own_work_only(role, may):
    assert attempts(role) == may


def test_no_role_may_delete_what_the_kernel_keeps(rf):
    for role in ROLES:
        request = rf.get("/")
        request.user = console.person(f"d-{role}", groups=[role])
        for model, model_admin in admin.site._registry.items():
            if model._meta.app_label in ("runs", "approvals", "outbox"):
                assert not model_admin.has_delete_permission(request), (role, model)


# Every door of the console that does something, with the right that it needs. A new one belongs here.
DOORS = {
    "approvals_approval_decide": "approvals.decide_approval",
    "approvals_approval_edit": "approvals.decide_approval",
    "approvals_approval_reveal": "approvals.decide_approval",
    "approvals_policy_try": "approvals.add_policy",
    "runs_operation_resolve": "runs.reconcile_operation",
    "runs_operation_probe": "runs.reconcile_operation",
    "runs_operation_compensate": "runs.compensate_operation",
    "runs_run_cancel": "runs.cancel_run",
    "runs_run_resume": "runs.resume_run",
    "runs_run_transcript": "runs.view_artifact",
    "runs_agent_new_version": "runs.add_agentversion",
}
ACTIONS = {
    "approvals.approval reject_selected": "approvals.decide_approval",
    "approvals.policy retire": "approvals.change_policy",
    "approvals.channel retire": "approvals.change_channel",
    "runs.run cancel_selected": "runs.cancel_run",
    "runs.run resume_selected": "runs.resume_run",
    "runs.hold release": "runs.place_hold",
    "runs.apikey revoke": "runs.change_apikey",
    "outbox.parkedevent replay": "outbox.replay_parkedevent",
    "outbox.parkedevent give_up": "outbox.give_up_parkedevent",
}
LOOKING_DOORS = {"runs_run_live", "runs_artifact_download", "temporality_item_run"}  # they only show
DJANGOS_OWN = ("_changelist", "_add", "_change", "_delete", "_history", "_password_change")


def doors() -> set[str]:
    """The named addresses of the models' pages that are none of Django's own."""
    patterns = [one for model_admin in admin.site._registry.values() for one in model_admin.get_urls()]
    names = {str(one.name) for one in patterns if one.name}
    return {name for name in names if not name.endswith(DJANGOS_OWN)} - LOOKING_DOORS


def test_every_door_names_its_right():
    assert doors() == DOORS.keys()
    found = {
        f"{model._meta.app_label}.{model._meta.model_name} {action}"
        for model, model_admin in admin.site._registry.items()
        for action in model_admin.actions or ()
    }
    assert found == ACTIONS.keys()


@pytest.mark.parametrize("role", [*ROLES, ""])
def test_a_role_is_let_through_the_doors_that_it_has_the_right_to_and_no_others(role, rf):
    """Nobody's role is "": a member of staff without one."""
    user = console.person("walker", groups=[role] if role else [])
    client, operation = console.logged_in(user), console.uncertain_run()
    approval = console.waiting_run()
    things = {
        "approval_id": approval.id, "operation_id": operation.id, "run_id": operation.run_id,
        "agent_id": operation.run.agent_version.agent_id,
    }  # fmt: skip
    for name, right in DOORS.items():
        wanted = next((key for key in things if key.removesuffix("_id") == name.split("_")[1]), None)
        address = reverse(f"admin:{name}", kwargs={wanted: things[wanted]} if wanted else None)
        refused = client.post(address).status_code == 403
        assert refused != user.has_perm(right), (role, name)
    request = rf.get("/")
    request.user = user
    for model, model_admin in admin.site._registry.items():
        for action in model_admin.actions or ():
            right = ACTIONS[f"{model._meta.app_label}.{model._meta.model_name} {action}"]
            assert (action in model_admin.get_actions(request)) == user.has_perm(right), (role, model, action)

"""Roles are groups that a migration makes; each can do its own work in the console and nobody else's."""

from __future__ import annotations

import importlib

import pytest
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
    from django.contrib import admin

    for role in ROLES:
        request = rf.get("/")
        request.user = console.person(f"d-{role}", groups=[role])
        for model, model_admin in admin.site._registry.items():
            if model._meta.app_label in ("runs", "approvals", "outbox"):
                assert not model_admin.has_delete_permission(request), (role, model)

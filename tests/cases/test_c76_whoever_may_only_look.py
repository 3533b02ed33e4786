"""C76. Somebody who may only look walks over every page, every action and every address of the console."""

from __future__ import annotations

import re

import pytest
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.urls import URLPattern, URLResolver, get_resolver, reverse

from approvals.models import Approval, Policy
from outbox.models import Event, Stream
from runs.models import Operation, Run
from tests import console
from tests.kernel import make_agent, make_project, says

pytestmark = pytest.mark.django_db(databases=["default", "temporality"])

OPEN_TO_ALL = {"login", "logout", "password_change", "password_change_done", "jsi18n", "app_list", "index", "live"}
CHANGING = (
    "_decide", "_edit", "_reveal", "_try", "_resolve", "_probe", "_compensate", "_cancel", "_new_version", "_resume",
)  # fmt: skip

LOOKING = ("_changelist", "_history", "_transcript")  # what a POST to them only shows; the transcript is put on record


@pytest.fixture
def scene():
    project = make_project()
    approval = console.waiting_run(project)
    operation = console.uncertain_run(project)
    Policy.objects.create(project=project.slug, name="p", version=1, answer="deny", created_by="x")
    version = make_agent(project, [says("x")], [])
    return {"approval_id": approval.id, "operation_id": operation.id, "run_id": operation.run_id,
            "agent_id": version.agent_id, "artifact_id": operation.run.artifacts.first().id}  # fmt: skip


def state_of_everything():
    return (
        list(Run.objects.order_by("id").values("id", "state", "cancel_requested_at")),
        list(Operation.objects.order_by("id").values("id", "state", "verdict")),
        list(Approval.objects.order_by("id").values("id", "state", "decided_by")),
        list(Policy.objects.order_by("id").values("id", "retired_at")),
        Event.objects.count(),
        list(Stream.objects.order_by("run_id").values("run_id", "head")),
    )


def addresses(scene):
    """Every named address under the admin, with arguments that exist."""
    [root] = [one for one in get_resolver().url_patterns if getattr(one, "namespace", "") == "admin"]
    for pattern in walk(root):
        names = list(pattern.pattern.converters)
        route = str(pattern.pattern)
        if pattern.name is None:
            continue
        if "object_id" in names:
            for model in admin.site._registry:
                name = f"{model._meta.app_label}_{model._meta.model_name}"
                first = model._default_manager.first()
                if first is not None and pattern.name.startswith(f"{name}_"):
                    yield pattern.name, reverse(f"admin:{pattern.name}", args=[first.pk])
        elif names and all(name in scene for name in names):
            yield pattern.name, reverse(f"admin:{pattern.name}", kwargs={name: scene[name] for name in names})
        elif not names and "(" not in route:
            yield pattern.name, reverse(f"admin:{pattern.name}")


def walk(resolver):
    for one in resolver.url_patterns:
        if isinstance(one, URLResolver):
            yield from walk(one)
        elif isinstance(one, URLPattern):
            yield one


def test_the_walk_finds_the_addresses_that_change_something(scene):
    found = {name for name, _ in addresses(scene)}
    assert {"approvals_approval_decide", "runs_operation_resolve", "runs_run_cancel", "runs_agent_new_version"} <= found
    assert len(found) > 60


def test_no_get_changes_anything_whoever_asks(scene):
    client = console.logged_in(console.person("root", superuser=True))
    before = state_of_everything()
    for name, address in addresses(scene):
        if name != "logout":
            assert client.get(address).status_code < 500, name
    assert state_of_everything() == before


def test_a_viewer_posts_everywhere_and_changes_nothing(scene):
    client = console.logged_in(console.viewer())
    before, accounts = state_of_everything(), LogEntry.objects.count()
    form = {"verdict": "approve", "reason": "r", "note": "n", "definition": "model: scripted:x", "post": "yes"}
    for name, address in addresses(scene):
        if name in OPEN_TO_ALL or name == "search":
            continue
        answer = client.post(address, form)
        told = b"".join(answer) if answer.streaming else answer.content
        assert answer.status_code in (403, 405, 302, 200), (name, answer.status_code)
        assert answer.status_code in (403, 405) or name.endswith(LOOKING), (name, told[:200])
        if name.endswith(CHANGING):
            assert answer.status_code == 403, name
    assert state_of_everything() == before
    refused = LogEntry.objects.order_by("id").values_list("change_message", flat=True)[accounts:]
    assert len([said for said in refused if said.startswith("refused:")]) == 11
    assert all("127.0.0.1" in said for said in refused)


def test_a_viewer_runs_every_action_and_changes_nothing(scene):
    client = console.logged_in(console.viewer())
    before = state_of_everything()
    tried = 0
    for model, model_admin in admin.site._registry.items():
        name = f"{model._meta.app_label}_{model._meta.model_name}"
        first = model._default_manager.first()
        for action in (*(model_admin.actions or ()), "delete_selected"):
            if first is not None:
                form = {"action": action, "_selected_action": [str(first.pk)], "select_across": "1", "post": "yes"}
                client.post(reverse(f"admin:{name}_changelist"), form)
                tried += 1
    assert tried > 10
    assert state_of_everything() == before


def test_every_action_names_its_permission():
    for model_admin in admin.site._registry.values():
        for action in model_admin.actions or ():
            assert getattr(getattr(model_admin, action), "allowed_permissions", None), (model_admin, action)


def test_whoever_has_no_right_sees_no_object(scene):
    client = console.logged_in(console.person("noah"))
    for name, address in addresses(scene):
        if name in OPEN_TO_ALL or name == "search":
            continue
        assert client.get(address).status_code in (403, 405, 302), name


def test_a_stranger_is_sent_to_the_log_in_page(scene, client):
    for name, address in addresses(scene):
        if name in ("login", "logout", "jsi18n"):
            continue
        answer = client.get(address)
        assert answer.status_code == 302, name
        assert re.search(r"/admin/login/", answer["Location"]), name


def test_the_kernels_records_have_no_editable_state(scene):
    root = console.logged_in(console.person("root", superuser=True))
    for model, model_admin in admin.site._registry.items():
        if model._meta.app_label not in ("runs", "approvals", "outbox"):
            continue
        first = model._default_manager.first()
        request = root.get(reverse("admin:index")).wsgi_request
        assert not model_admin.has_delete_permission(request, first), model
        if model_admin.has_change_permission(request, first):
            assert set(model_admin.get_fields(request, first)) - set(
                model_admin.get_readonly_fields(request, first)
            ) == {"enabled"}, model

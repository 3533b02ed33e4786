"""API keys in the console: shown once, never more than their maker may do, taken back, and on record in every way."""

from __future__ import annotations

import io
import json
import re

import pytest
from django.contrib.admin.models import LogEntry
from django.core.management import call_command

from kernel_project.web.callers import PERMISSIONS
from runs import keys
from runs.keeping import audit
from runs.models import ApiKey, AuditEntry
from tests.api_client import Api, is_problem
from tests.console import logged_in, person
from tests.kernel import make_project

pytestmark = pytest.mark.django_db
ADD = "/admin/runs/apikey/add/"
TOKEN = re.compile(r"ak_[0-9a-f]{12}_[A-Za-z0-9_-]{43}")


def form(**more):
    return {"project": make_project().slug, "name": "ci", "scopes": ["runs:read"], "days": "30", **more}


def makes(client, **more) -> str:
    answer = client.post(ADD, form(**more))
    assert answer.status_code == 200
    [token] = set(TOKEN.findall(answer.content.decode()))
    assert "no-store" in answer["Cache-Control"]
    return token


def test_a_key_is_shown_in_the_answer_works_and_is_nowhere_afterwards():
    client = logged_in(person("ann", superuser=True))
    token = makes(client)
    assert Api(token).get("/runs").status_code == 200
    row = ApiKey.objects.get()
    assert (row.created_by, row.user, row.scopes) == ("ann", None, ["runs:read"])
    assert 29 <= (row.expires_at - row.created_at).days <= 30
    secret = token.split("_", 2)[2]
    for page in (f"/admin/runs/apikey/{row.pk}/change/", "/admin/runs/apikey/", "/admin/admin/logentry/", ADD):
        shown = client.get(page).content.decode()
        assert secret not in shown
        assert row.secret_hash not in shown
    kept = [*LogEntry.objects.values_list("change_message", flat=True), *AuditEntry.objects.values_list("detail")]
    assert secret not in str(kept)


def test_it_is_used_expires_and_is_taken_back_as_the_list_says():
    client = logged_in(person("ann", superuser=True))
    token = makes(client)
    Api(token).get("/runs")
    assert "usable" in client.get("/admin/runs/apikey/").content.decode()
    row = ApiKey.objects.get()
    assert row.last_used_at is not None
    client.post("/admin/runs/apikey/", {"action": "revoke", "_selected_action": [row.pk]})
    assert is_problem(Api(token).get("/runs"), 401, "unauthenticated")
    assert ApiKey.objects.get().revoked_by == "ann"
    assert "revoked" in client.get("/admin/runs/apikey/").content.decode()


def test_to_make_and_to_take_back_are_permissions_of_their_own():
    viewer = logged_in(person("vera", "runs.view_apikey"))
    assert viewer.get(ADD).status_code == 403
    assert viewer.post(ADD, form()).status_code == 403
    key, _ = keys.create(project=make_project().slug, name="k", scopes=["runs:read"])
    viewer.post("/admin/runs/apikey/", {"action": "revoke", "_selected_action": [key.pk]})
    assert ApiKey.objects.get().revoked_at is None
    assert LogEntry.objects.filter(change_message__contains="refused: making an API key").count() == 2


def test_nobody_hands_out_more_than_they_have():
    client = logged_in(person("kim", "runs.view_apikey", "runs.add_apikey", "runs.view_run"))
    makes(client, scopes=["runs:read"])
    for scope in PERMISSIONS.keys() - {"runs:read"}:
        answer = client.post(ADD, form(scopes=["runs:read", scope], as_me="on"))
        assert f"you cannot hand out {scope}" in answer.content.decode()
    assert ApiKey.objects.count() == 1


def test_a_personal_scope_needs_its_maker_as_the_person_behind_it():
    boss = person("boss", superuser=True)
    client = logged_in(boss)
    refused = client.post(ADD, form(scopes=["approvals:decide"]))
    assert "needs a person" in refused.content.decode()
    makes(client, scopes=["approvals:decide"], as_me="on")
    assert ApiKey.objects.get().user == boss


@pytest.mark.parametrize(
    "wrong", [{"project": "nowhere"}, {"name": ""}, {"scopes": []}, {"scopes": ["all"]}, {"days": "0"}]
)
def test_what_cannot_be_is_refused_with_a_sentence(wrong):
    answer = logged_in(person("ann", superuser=True)).post(ADD, form(**wrong))
    assert answer.status_code == 200
    assert not TOKEN.search(answer.content.decode())
    assert not ApiKey.objects.exists()


def test_every_way_to_make_or_take_back_a_key_is_in_the_audit_record_of_its_project():
    project, out = make_project(), io.StringIO()
    call_command("create_api_key", "--project", project.slug, "--name", "ci", "--scope", "runs:read", stdout=out)
    keys.revoke(ApiKey.objects.get().id, by="ann")
    keys.revoke(ApiKey.objects.get().id, by="bob")
    audit.seal()
    made, gone = AuditEntry.objects.filter(project=project.slug).order_by("sequence")
    assert (made.action, gone.action) == ("key.created", "key.revoked")
    assert made.actor.startswith("command by ")
    assert gone.actor == "ann"
    told = json.loads(made.detail)
    assert (told["name"], told["scopes"]) == ("ci", ["runs:read"])
    assert audit.broken() == []

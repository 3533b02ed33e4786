"""Keys and sessions of the JSON API: who is let in, as whom, and until when."""

from __future__ import annotations

import io
from datetime import timedelta

import pytest
from django.contrib.auth.models import Permission
from django.core.management import CommandError, call_command
from django.middleware.csrf import get_token
from django.test import Client, RequestFactory

from kernel_project.primitives.clock import now
from kernel_project.primitives.errors import Invalid
from runs import keys
from runs.models import ApiKey
from tests.api_client import ROOT, Api, api_for, decoded, is_problem, make_person
from tests.api_scene import make_scene
from tests.kernel import make_project

pytestmark = [pytest.mark.django_db(transaction=True)]


def test_the_command_prints_a_key_once_and_only_its_hash_is_kept():
    project, out = make_project(), io.StringIO()
    call_command("create_api_key", "--project", project.slug, "--name", "ci", "--scope", "runs:read", stdout=out)
    token = out.getvalue().strip()
    assert Api(token).get("/runs").status_code == 200
    row = ApiKey.objects.get()
    assert token.split("_", 2)[2] not in str(vars(row))
    assert token.startswith(f"ak_{row.prefix}_")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--project", "nowhere", "--name", "x", "--scope", "runs:read"], "no project"),
        (["--project", "{}", "--name", "x", "--scope", "runs:everything"], "invalid choice"),
        (["--project", "{}", "--name", "x", "--scope", "approvals:decide"], "needs a person"),
        (["--project", "{}", "--name", "x", "--scope", "runs:read", "--user", "nobody"], "no user"),
        (["--project", "{}", "--name", "x", "--scope", "runs:read", "--expires", "soon"], "not a time"),
        (["--project", "{}", "--name", "x", "--scope", "runs:read", "--expires", "2001-01-01T00:00:00Z"], "to come"),
        (["--project", "{}", "--name", "x", "--scope", "runs:read", "--expires", "2090-01-01"], "offset"),
        (["--project", "{}", "--name", " ", "--scope", "runs:read"], "name"),
    ],
)
def test_the_command_refuses_with_a_sentence(options, said):
    project = make_project()
    with pytest.raises(CommandError, match=said):
        call_command("create_api_key", *[option.format(project.slug) for option in options])
    assert not ApiKey.objects.exists()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda token: token[:-1] + ("A" if token[-1] != "A" else "B"),
        lambda token: token.replace("ak_", "ak_x"),
        lambda token: "ak_" + "0" * 12 + token[15:],
        lambda token: token.upper(),
        lambda token: "",
        lambda token: "\x00",
        lambda token: token + "é",
        lambda token: token * 1000,
    ],
)
def test_a_wrong_key_is_nobody(spoil):
    _, token = keys.create(project=make_project().slug, name="k", scopes=["runs:read"])
    assert is_problem(Api(spoil(token) or " ").get("/runs"), 401, "unauthenticated")


def test_expired_revoked_and_orphaned_keys_let_nobody_in():
    project, person = make_project(), make_person()
    late, late_token = keys.create(project=project.slug, name="late", scopes=["runs:read"], expires_at=soon())
    gone, gone_token = keys.create(project=project.slug, name="gone", scopes=["runs:read"])
    _, left_token = keys.create(project=project.slug, name="left", scopes=["runs:read"], user=person)
    assert [Api(token).get("/runs").status_code for token in (late_token, gone_token, left_token)] == [200] * 3
    ApiKey.objects.filter(id=late.id).update(expires_at=now())
    keys.revoke(gone.id)
    person.is_active = False
    person.save()
    for token in (late_token, gone_token, left_token):
        assert is_problem(Api(token).get("/runs"), 401, "unauthenticated")


def soon():
    return now() + timedelta(hours=1)


def test_the_last_use_is_noted_but_not_at_every_request():
    key, token = keys.create(project=make_project().slug, name="k", scopes=["runs:read"])
    Api(token).get("/runs")
    first = ApiKey.objects.get(id=key.id).last_used_at
    Api(token).get("/runs")
    assert first is not None
    assert ApiKey.objects.get(id=key.id).last_used_at == first


def test_a_personal_scope_needs_a_person():
    with pytest.raises(Invalid, match="person"):
        keys.create(project=make_project().slug, name="k", scopes=["operations:reconcile"])


def test_a_persons_key_can_do_no_more_than_the_person():
    scene, person = make_scene(), make_person(superuser=False)
    api = api_for(scene.project, "runs:read", "approvals:decide", user=person)
    decide = f"/approvals/{scene.approval.id}/decide"
    assert is_problem(api.post(decide, {"verdict": "approve"}), 403, "missing_scope")
    person.user_permissions.add(Permission.objects.get(codename="decide_approval"))
    assert api.post(decide, {"verdict": "approve"}).data["decided_by"] == person.username
    assert is_problem(api.get("/runs"), 403, "missing_scope")


class Browser:
    """A person who is logged in, in a browser."""

    def __init__(self, person, *, token: bool = True):
        self.client = Client(enforce_csrf_checks=True, raise_request_exception=False)
        self.client.force_login(person)
        request = RequestFactory().get("/")
        secret = get_token(request)
        self.headers = {"X-CSRFToken": secret} if token else {}
        self.client.cookies["csrftoken"] = request.META["CSRF_COOKIE"]

    def get(self, path, **query):
        return decoded(self.client.get(ROOT + path, query))

    def post(self, path, body):
        return decoded(self.client.post(ROOT + path, body, "application/json", headers=self.headers))


def test_a_person_who_is_logged_in_says_which_project():
    scene, person = make_scene(), make_person()
    assert is_problem(Browser(person).get("/runs"), 422, "invalid_request")
    assert is_problem(Browser(person).get("/runs", project="no-such"), 404, "not_found")
    [run] = Browser(person).get("/runs", project=scene.project.slug).data["items"]
    assert run["id"] == str(scene.run.id)


def test_a_session_changes_things_only_with_its_csrf_token():
    scene, person = make_scene(), make_person()
    decide = f"/approvals/{scene.approval.id}/decide?project={scene.project.slug}"
    refused = Browser(person, token=False).post(decide, {"verdict": "approve"})
    assert is_problem(refused, 403, "csrf_failed")
    assert Browser(person).post(decide, {"verdict": "approve"}).data["decided_by"] == person.username


def test_a_session_may_do_what_its_person_may():
    scene, person = make_scene(), make_person(superuser=False)
    person.user_permissions.add(Permission.objects.get(codename="view_run"))
    browser, slug = Browser(person), scene.project.slug
    assert browser.get("/runs", project=slug).status_code == 200
    assert is_problem(browser.get("/operations", project=slug), 403, "missing_scope")
    cancel = browser.post(f"/runs/{scene.run.id}/cancel?project={slug}", {})
    assert is_problem(cancel, 403, "missing_scope")


def test_who_is_logged_in_but_no_staff_is_nobody():
    person = make_person()
    person.is_staff = False
    person.save()
    assert is_problem(Browser(person).get("/runs", project=make_project().slug), 401, "unauthenticated")

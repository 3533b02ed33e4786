"""Calling the JSON API in tests: Django's own client, with a key, JSON in and out."""

from __future__ import annotations

import json
from typing import Any

from django.contrib.auth.models import Group, User
from django.http import HttpResponse
from django.test import Client

from kernel_project.web.callers import SCOPES
from runs import keys
from runs.models import Project

ROOT = "/api/v1"
PROBLEM = "application/problem+json"


class Api:
    """One caller. Answers carry `.data`, the decoded body."""

    def __init__(self, token: str | None = None) -> None:
        self.client = Client(raise_request_exception=False)
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}

    def get(self, path: str, **query: Any) -> Any:
        return decoded(self.client.get(ROOT + path, query, headers=self.headers))

    def post(self, path: str, body: Any = None, **headers: str) -> Any:
        return self.send("POST", path, json.dumps(body) if body is not None else "", **headers)

    def send(self, method: str, path: str, text: str | bytes = "", **headers: str) -> Any:
        """Whatever text as the body."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        sent = self.client.generic(method, ROOT + path, text, "application/json", headers=self.headers | given)
        return decoded(sent)


def decoded(response: HttpResponse) -> Any:
    if response.content and "json" in response["Content-Type"]:
        response.data = json.loads(response.content)
    return response


def api_for(project: Project, *scopes: str, user: User | None = None) -> Api:
    """A caller with a key of this project; without scopes named, all of them, with a person behind the key."""
    person = user or (None if scopes else make_person())
    _, token = keys.create(project=project.slug, name="test", scopes=scopes or SCOPES, user=person)
    return Api(token)


def make_person(name: str = "", *, superuser: bool = True, groups: tuple[str, ...] = (), **more: Any) -> User:
    name = name or f"person-{User.objects.count()}"
    user = User.objects.create(username=name, is_staff=True, is_superuser=superuser, **more)
    user.groups.set([Group.objects.get_or_create(name=group)[0] for group in groups])
    return user


def is_problem(response: Any, status: int, code: str) -> bool:
    """Check the whole form of an error."""
    body = response.data
    assert response.status_code == status, (response.status_code, body)
    assert response["Content-Type"] == PROBLEM
    assert body["status"] == status
    assert body["code"] == code, body
    assert body["type"] == f"urn:agent-kernel:problem:{code}"
    assert body["title"]
    assert body["detail"]
    assert body["request_id"] == response["X-Request-Id"]
    return True

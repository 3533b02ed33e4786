"""Log-in at an OpenID Connect issuer: who comes gets an account without rights, and nobody gets somebody else's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from urllib.parse import urlsplit

import pytest
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import connection

from kernel_project import environment
from tests.fakes.oidc_issuer import CLIENT, oidc_issuer

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def told():
    """What happened in a process with the setting, on a database of its own: it has tables that others do not."""
    pytest.importorskip("allauth")
    name = f"oidc_{uuid.uuid4().hex[:8]}"
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name}")
    database = urlsplit(os.environ["DATABASE_URL"])._replace(path=f"/{name}").geturl()
    with oidc_issuer() as issuer:
        issuer.people = {
            "ann": {"sub": "1", "preferred_username": "ann", "email": "ann@example.org", "email_verified": True},
            "eve": {"sub": "2", "preferred_username": "eve", "email": "eve@example.org"},
        }
        given = os.environ | {
            "DATABASE_URL": database, "KERNEL_OIDC_ISSUER": issuer.url, "KERNEL_OIDC_CLIENT_ID": CLIENT[0],
            "KERNEL_OIDC_CLIENT_SECRET": CLIENT[1], "DJANGO_SETTINGS_MODULE": "kernel_project.settings",
        }  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-m", "tests.oidc_visitor"], env=given, cwd=settings.BASE_DIR, capture_output=True,
            text=True, timeout=100, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        assert issuer.refused == []
    return json.loads(done.stdout.splitlines()[-1])


def test_people_log_in_there_and_take_over_nobody(told):
    assert told["offered"], "the log-in page leads there"
    for who in ("ann", "ann_again", "eve"):
        assert told[who] == {"to": "/admin/runs/run/", "pkce": ["S256"], "status": 200, "may_see_runs": False}
    local, *came = told["accounts"]
    assert local == ["ann", True, True, "ann@example.org"]
    assert [account[1:3] for account in came] == [[True, False]] * 2, "into the console, without a right"
    assert came[0][0].startswith("ann")
    assert came[0][0] != "ann"
    assert told["switched_off"]["to"].endswith("/inactive/")
    assert told["switched_off"]["status"] == 302
    assert told["forged"]["told"]
    assert not told["forged"]["in"]
    assert told["others"] == [302, 404, 404], "no page to make or join accounts by hand"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"KERNEL_OIDC_ISSUER": "login.example.org"}, "KERNEL_OIDC_ISSUER"),
        ({"KERNEL_OIDC_ISSUER": "https://login.example.org"}, "KERNEL_OIDC_CLIENT_ID"),
    ],
)
def test_half_a_setting_is_refused(monkeypatch, given, said):
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ImproperlyConfigured, match=said):
        environment.read()


def test_without_the_setting_nothing_of_it_is_there(client):
    assert client.get("/accounts/oidc/oidc/login/").status_code == 404
    assert "OpenID" not in client.get("/admin/login/").content.decode()

"""The event store's admin pages: every one opens, shows what is wrong, and trusts no text."""

from __future__ import annotations

from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from temporality.models import Conflict, Edge, Event, Head, Item, Pending, Progress, Projector, Token
from tests import console
from tests.kernel import make_agent, make_project, says

HOSTILE = "<script>alert(1)</script>"
PAGES = ["event", "conflict", "pending", "edge", "progress", "item", "projector", "token"]

pytestmark = pytest.mark.django_db(databases=["default", "temporality"])


@pytest.fixture
def client() -> Client:
    user = User.objects.create_superuser("operator", password="a long enough password")
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture(autouse=True)
def odd_rows() -> None:
    now = timezone.now()
    key = {"source_id": "s", "event_id": HOSTILE, "project": "p", "run": "r"}
    Event.objects.create(
        position=1, type=HOSTILE, subject_id=HOSTILE, parents=[], occurred_at=now, received_at=now,
        content=f'{{"x":"{HOSTILE}"}}', **key,
    )  # fmt: skip
    Conflict.objects.create(
        kind="content", position=1, content_hash=b"2", content=f'{{"y":"{HOSTILE}"}}', first_seen_at=now,
        last_seen_at=now, **key,
    )  # fmt: skip
    Pending.objects.create(generation=1, position=1, type="x", state="waiting", reason=HOSTILE, received_at=now, **key)
    Edge.objects.create(generation=1, position=1, source_id="s", parent_event_id=HOSTILE, project="p", state="missing")
    Progress.objects.create(
        generation=1, source_id="s", run=HOSTILE, project="p", count=1, highest=2, contiguous=0, unnumbered=0,
        last_received_at=now,
    )  # fmt: skip
    Item.objects.create(
        generation=1, project="p", kind="run", source_id="s", key=HOSTILE, status="running", registers="{}",
        changed_at=now,
    )  # fmt: skip
    Token.objects.create(name=HOSTILE, token_hash=b"3", role="reader", all_projects=True, created_at=now)
    assert Projector.objects.get().generation == 1


@pytest.mark.parametrize("page", PAGES)
def test_the_list_and_one_row_open_and_escape_what_they_show(client: Client, page: str) -> None:
    listed = client.get(f"/admin/temporality/{page}/")
    assert listed.status_code == 200
    model: type[Any] = {"event": Event, "conflict": Conflict, "pending": Pending, "edge": Edge, "progress": Progress,
             "item": Item, "projector": Projector, "token": Token}[page]  # fmt: skip
    one = client.get(f"/admin/temporality/{page}/{model.objects.get().pk}/change/")
    assert one.status_code == 200
    assert HOSTILE not in listed.content.decode() + one.content.decode()


def test_a_conflict_shows_both_versions(client: Client) -> None:
    page = client.get(f"/admin/temporality/conflict/{Conflict.objects.get().pk}/change/").content.decode()
    assert "&quot;x&quot;" in page
    assert "&quot;y&quot;" in page


def test_an_event_is_found_by_its_whole_id_and_odd_searches_find_nothing(client: Client) -> None:
    link = "/admin/temporality/event/1/change/"
    assert link in client.get("/admin/temporality/event/", {"q": HOSTILE}).content.decode()
    assert link not in client.get("/admin/temporality/event/", {"q": "something else"}).content.decode()
    assert client.get("/admin/temporality/event/", {"q": "\x00"}).status_code == 200


def run_with_three_events() -> None:
    now = timezone.now()
    Event.objects.all().delete()
    Pending.objects.all().delete()
    for position, sequence in ((1, 2), (2, 1), (3, None)):
        Event.objects.create(
            position=position, source_id="s", event_id=f"e-{position}", project="a project", run="a/run",
            type="test.note", sequence=sequence, parents=[], occurred_at=now, received_at=now, content="{}",
        )  # fmt: skip
    Item.objects.create(
        generation=1, project="a project", kind="run", source_id="s", key="a/run", status="running", registers="{}",
        changed_at=now,
    )  # fmt: skip
    Pending.objects.create(
        generation=1, position=1, project="a project", source_id="s", event_id="e-1", type="test.note", run="a/run",
        kind="run", key="a/run", state="waiting", reason="a parent has not arrived", received_at=now,
    )  # fmt: skip
    Projector.objects.filter(generation=1).update(position=2)
    Head.objects.update(position=3)


def test_a_run_is_found_by_its_project_and_id_and_shows_its_events_in_sequence_and_what_became_of_them(
    client: Client,
) -> None:
    run_with_three_events()
    page = client.get("/admin/temporality/item/run/", {"project": "a project", "run": "a/run"}, follow=True)
    html = page.content.decode()
    assert page.status_code == 200
    assert html.index(">e-2<") < html.index(">e-1<", html.index("<table")) < html.index(">e-3<")
    for wanted in ("applied", "waiting", "unread", "a parent has not arrived"):
        assert wanted in html


def test_a_run_that_is_not_projected_leads_to_the_inbox(client: Client) -> None:
    page = client.get("/admin/temporality/item/run/", {"project": "p", "run": "nobody\0 knows"})
    assert page.headers["location"] == "/admin/temporality/event/?q=nobody+knows"


def test_items_are_listed_by_kind_and_state(client: Client) -> None:
    run_with_three_events()
    listed = client.get("/admin/temporality/item/", {"kind": "run", "status": "running"}).content.decode()
    other = client.get("/admin/temporality/item/", {"kind": "operation", "status": "uncertain"}).content.decode()
    assert ("a/run" in listed, "a/run" in other) == (True, False)


def test_the_projection_page_tells_the_lag(client: Client) -> None:
    run_with_three_events()
    assert ">1</span>" in client.get("/admin/temporality/projector/").content.decode()


@pytest.mark.parametrize("page", PAGES)
def test_where_the_event_store_is_another_installations_nobody_opens_its_pages(
    client: Client, page: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "DATABASES", {"default": settings.DATABASES["default"]})
    assert client.get(f"/admin/temporality/{page}/").status_code == 403
    assert "/admin/temporality/" not in client.get("/admin/").content.decode()


def test_the_kernels_page_of_a_run_links_to_the_event_stores_and_only_if_that_is_ours(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = make_project()
    run = console.begin(make_agent(project, [says("hello")], []))
    link = f"/admin/temporality/item/run/?project={project.pk}&amp;run={run.id}"
    assert link in client.get(f"/admin/runs/run/{run.id}/change/").content.decode()
    monkeypatch.setattr(settings, "DATABASES", {"default": settings.DATABASES["default"]})
    assert link not in client.get(f"/admin/runs/run/{run.id}/change/").content.decode()

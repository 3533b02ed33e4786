"""The event store's admin pages: every one opens, shows what is wrong, and trusts no text."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from temporality.models import Conflict, Edge, Event, Item, Pending, Progress, Projector, Token

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

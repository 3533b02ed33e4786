"""C29. A decision around the deadline: the database's clock judges, and exactly at the deadline is late."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection
from django.urls import reverse

from approvals import services
from approvals.models import Approval, Decision
from approvals.services import Expired
from tests import console
from tests.api_client import api_for, is_problem
from tests.boundary_scene import committed, decider, make_scene, perform_now, stop_the_clock_at

pytestmark = pytest.mark.usefixtures("committed")
__all__ = ["committed"]


def due_in(scene, milliseconds: int) -> Approval:
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE approvals_approval SET deadline_at = clock_timestamp() + make_interval(secs => %s / 1000.0) "
            "WHERE operation_id = %s",
            [milliseconds, scene.id],
        )
    return Approval.objects.get(operation_id=scene.id)


def test_before_it_counts_although_the_worker_comes_later():
    scene = make_scene("opaque", allow=False)
    services.decide(due_in(scene, 60_000).id, scene.project.slug, decider(), "approve")
    due_in(scene, -600_000)
    services.expire([scene.id])
    assert perform_now(scene.id).state == "succeeded"


def test_a_page_from_before_it_that_is_sent_after_it_applies_nothing():
    scene = make_scene("opaque", allow=False)
    person = console.viewer("late-c29", "approvals.decide_approval")
    page = console.logged_in(person)
    address = reverse("admin:approvals_approval_change", args=[due_in(scene, 60_000).id])
    assert "Approve" in page.get(address).content.decode()
    asked = due_in(scene, 0)
    form = reverse("admin:approvals_approval_decide", args=[asked.id])
    assert "nothing was applied" in page.post(form, {"verdict": "approve"}, follow=True).content.decode()
    html = page.get(address).content.decode()
    assert 'value="approve"' not in html
    assert "deadline has passed" in html
    key = api_for(scene.project, "approvals:decide", user=person)
    late = key.post(f"/approvals/{asked.id}/decide", {"verdict": "approve"})
    assert is_problem(late, 409, "expired")
    assert list(Decision.objects.values_list("applied", "actor").filter(approval=asked)) == [(False, "late-c29")] * 2


@pytest.mark.parametrize("microseconds", [0, 1], ids=["exactly at it", "after it"])
def test_at_it_and_after_it_nothing_is_applied(microseconds, monkeypatch):
    scene = make_scene("opaque", allow=False)
    asked = due_in(scene, 60_000)
    stop_the_clock_at(monkeypatch, asked.deadline_at + timedelta(microseconds=microseconds))
    with pytest.raises(Expired, match="nothing was applied"):
        services.decide(asked.id, scene.project.slug, decider("late"), "approve")
    services.expire([scene.id])
    with pytest.raises(Expired):
        services.decide(asked.id, scene.project.slug, decider("later"), "approve")
    tries = Decision.objects.filter(approval=asked).order_by("id")
    assert list(tries.values_list("actor", "applied", "refusal")) == [
        ("late", False, "expired"), ("later", False, "expired"),
    ]  # fmt: skip
    assert perform_now(scene.id).state == "expired"
    assert scene.outside.calls == []


def test_the_last_microsecond_before_it_is_in_time(monkeypatch):
    scene = make_scene("opaque", allow=False)
    asked = due_in(scene, 60_000)
    stop_the_clock_at(monkeypatch, asked.deadline_at - timedelta(microseconds=1))
    assert services.expire([scene.id]) == 0
    assert services.decide(asked.id, scene.project.slug, decider(), "approve").state == "granted"

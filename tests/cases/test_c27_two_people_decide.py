"""C27. Two people decide at the same moment."""

from __future__ import annotations

import pytest
from django.test import Client
from django.urls import reverse

from approvals import services
from approvals.models import Approval, Decision
from approvals.services import AlreadyDecided
from outbox.models import Event
from tests import console
from tests.api_client import api_for
from tests.boundary_scene import at_once, committed, decider, make_scene, perform_now, told

pytestmark = pytest.mark.usefixtures("committed")
__all__ = ["committed"]


def test_twenty_decisions_at_once_have_one_outcome():
    scene = make_scene("opaque", allow=False)
    asked = Approval.objects.get(operation_id=scene.id)

    def decision(number: int):
        who, verdict = ("anna", "approve") if number % 2 else ("bert", "reject")
        return lambda: services.decide(asked.id, scene.project.slug, decider(who), verdict)

    answers = at_once(*(decision(number) for number in range(20)))
    refused = [answer for answer in answers if isinstance(answer, AlreadyDecided)]
    given = [answer for answer in answers if isinstance(answer, Approval)]
    assert len(refused) + len(given) == 20
    assert len({(answer.state, answer.decided_by) for answer in given}) == 1
    assert {error.details["decided_by"] for error in refused} == {given[0].decided_by}
    assert all(error.details["decided_at"] for error in refused)
    assert Decision.objects.filter(approval=asked, applied=True).count() == 1
    perform_now(scene.id)
    assert len(scene.outside.effects) == (given[0].state == "granted")
    assert sum(line.startswith("approval.") for line in told(scene.id)) == 2


def test_twenty_requests_from_two_people_over_api_and_admin_have_one_outcome():
    scene = make_scene("opaque", allow=False)
    asked = Approval.objects.get(operation_id=scene.id)
    anna, bert = (console.viewer(name, "approvals.decide_approval") for name in ("anna-c27", "bert-c27"))
    apis = {"approve": api_for(scene.project, "approvals:decide", user=anna),
            "reject": api_for(scene.project, "approvals:decide", user=bert)}  # fmt: skip
    pages = {"approve": logged_in(anna), "reject": logged_in(bert)}  # opened before anybody decided
    form = reverse("admin:approvals_approval_decide", args=[asked.id])

    def one(number: int):
        verdict = "approve" if number % 2 else "reject"
        body = {"verdict": verdict, "reason": "so I say"}
        if number % 4 < 2:
            return lambda: apis[verdict].post(f"/approvals/{asked.id}/decide", body).status_code
        return lambda: pages[verdict].post(form, body).status_code

    answers = at_once(*(one(number) for number in range(20)))
    assert set(answers) <= {200, 302, 409}
    asked.refresh_from_db()
    by_winner = Decision.objects.get(approval=asked, applied=True)
    assert (asked.decided_by, asked.state) == (
        by_winner.actor,
        {"approve": "granted", "reject": "rejected"}[by_winner.verdict],
    )
    late = Decision.objects.filter(approval=asked, applied=False)
    assert set(late.values_list("refusal", flat=True)) == {"already_decided"}
    assert set(late.values_list("actor", flat=True)) == {"anna-c27", "bert-c27"} - {asked.decided_by}
    assert Event.objects.filter(operation_id=scene.id, type__in=("approval.granted", "approval.rejected")).count() == 1
    perform_now(scene.id)
    assert len(scene.outside.effects) == (asked.state == "granted")


def logged_in(user) -> Client:
    return console.logged_in(user)


def test_the_same_person_saying_the_same_again_gets_the_first_answer():
    scene = make_scene("opaque", allow=False)
    asked = Approval.objects.get(operation_id=scene.id)
    first, again = (services.decide(asked.id, scene.project.slug, decider("anna"), "approve") for _ in range(2))
    assert first.decided_at == again.decided_at
    with pytest.raises(AlreadyDecided):
        services.decide(asked.id, scene.project.slug, decider("anna"), "reject")


def test_a_double_click_is_one_decision():
    scene = make_scene("opaque", allow=False)
    asked = Approval.objects.get(operation_id=scene.id)
    twice = [lambda: services.decide(asked.id, scene.project.slug, decider("anna"), "reject", "no")] * 2
    assert {answer.decided_at for answer in at_once(*twice)} == {Approval.objects.get(id=asked.id).decided_at}
    assert Decision.objects.filter(approval=asked).count() == 1


def test_from_a_stale_page_one_is_told_who_decided_and_when():
    scene = make_scene("opaque", allow=False)
    asked = Approval.objects.get(operation_id=scene.id)
    late = console.logged_in(console.viewer("late-c27", "approvals.decide_approval"))
    services.decide(asked.id, scene.project.slug, decider("anna"), "approve")
    form = reverse("admin:approvals_approval_decide", args=[asked.id])
    html = late.post(form, {"verdict": "reject", "reason": "no"}, follow=True).content.decode()
    assert "granted by anna at 20" in html

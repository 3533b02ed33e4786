"""The operator's console: what each page shows, and that what it offers is done by the services."""

from __future__ import annotations

import re

import pytest
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Group
from django.db import DatabaseError
from django.urls import reverse

from approvals.models import Approval, Decision, Policy
from outbox import selectors
from outbox.models import Event, Stream
from runs.models import AgentVersion, Operation, Run
from tests import console
from tests.kernel import make_agent, make_project, says
from tests.waiting import until_sync

pytestmark = pytest.mark.django_db(databases=["default", "temporality"])


@pytest.fixture
def root(db):
    return console.logged_in(console.person("root", superuser=True))


def page(client, name, *args, **query):
    answer = client.get(reverse(f"admin:{name}", args=args), query)
    assert answer.status_code == 200, (name, answer.status_code)
    return answer.content.decode()


def scene():
    project = make_project()
    approval = console.waiting_run(project)
    operation = console.uncertain_run(project)
    run = console.begin(make_agent(project, [says("hello")], []))
    console.turn(run, 1, "hello")
    console.end(run, "failed", "turns_max", "the limit of turns was reached")
    return approval, operation, run


def test_every_list_and_every_add_page_opens(root):
    scene()
    for model, model_admin in admin.site._registry.items():
        name = f"{model._meta.app_label}_{model._meta.model_name}"
        page(root, f"{name}_changelist")
        page(root, f"{name}_changelist", q="0192f3a0-0000-7000-8000-000000000000")
        page(root, f"{name}_changelist", q="no such thing")
        added = root.get(reverse(f"admin:{name}_add"))
        assert added.status_code == (200 if model_admin.has_add_permission(added.wsgi_request) else 403), name


def test_every_object_page_opens(root):
    scene()
    for model in admin.site._registry:
        name = f"{model._meta.app_label}_{model._meta.model_name}"
        first = model._default_manager.first()
        if first is not None:
            page(root, f"{name}_change", first.pk)
            page(root, f"{name}_history", first.pk)


def test_every_filter_of_every_list_opens(root):
    scene()
    for model, model_admin in admin.site._registry.items():
        name = f"{model._meta.app_label}_{model._meta.model_name}"
        for one in model_admin.list_filter:
            if isinstance(one, type):
                offered = one(None, {}, model, model_admin).lookup_choices
                for value, _ in offered:
                    page(root, f"{name}_changelist", **{one.parameter_name: value})


def test_home_shows_lag_queues_and_runs(root):
    approval, operation, run = scene()
    html = page(root, "index")
    for wanted in ("pending events", "unaccounted", "publisher heard of", approval.tool, operation.name, "turns_max"):
        assert wanted in html
    assert reverse("admin:approvals_approval_change", args=[approval.id]) in html
    assert reverse("admin:runs_operation_change", args=[operation.id]) in html
    assert reverse("admin:runs_run_change", args=[run.id]) in html
    assert page(root, "live").count("k-card-") == 10


def test_home_with_nothing_to_show_says_so(root):
    html = page(root, "index")
    for wanted in ("Nobody is asked for anything.", "Nothing is unclear.", "No run yet.", "Every live run moves."):
        assert wanted in html


def test_a_database_error_in_one_card_leaves_the_others(root, monkeypatch):
    def broken():
        raise DatabaseError("canceling statement due to statement timeout")

    monkeypatch.setattr(selectors, "lag", broken)
    html = page(root, "index")
    assert "The database did not answer this card in time" in html
    assert "Nothing is unclear." in html


def test_a_card_is_for_those_who_may_see_its_rows():
    client = console.logged_in(console.person("rita", "runs.view_run"))
    html = page(client, "index")
    assert "Failing runs" in html
    assert "pending events" not in html
    assert "Uncertain operations" not in html
    nobody = console.logged_in(console.person("noah"))
    assert "You have no right to see any" in page(nobody, "index")


def test_home_never_calls_an_event_seen_before_the_event_store_did(root):
    scene()
    html = page(root, "live")
    assert "asked for 0 of 3 runs" in html
    run = Run.objects.first()
    html = page(root, "runs_run_change", run.id)
    assert "waits to be sent" in html
    assert "· seen" not in html
    Stream.objects.filter(run_id=run.id).update(published=1)
    html = page(root, "runs_run_change", run.id)
    assert html.count('k-good">acknowledged</span>') == 1
    assert "· seen" not in html
    Stream.objects.filter(run_id=run.id).update(seen=1)
    assert page(root, "runs_run_change", run.id).count("· seen") == 1


def test_run_page_shows_timeline_and_says_scripted(root):
    approval, _, _ = scene()
    html = page(root, "runs_run_change", approval.run_id)
    for wanted in ("scripted", "approval waiting", "tool", "approval.requested", "model.completed", "look after the"):
        assert wanted in html
    live = page(root, "runs_run_live", approval.run_id)
    assert "hx-get" in live


def test_a_long_run_is_paged(root):
    run = console.begin(make_agent(make_project(), [says("hello")], []))
    for number in range(1, 71):
        console.turn(run, number, "on and on")
    html = page(root, "runs_run_change", run.id)
    assert html.count('class="k-lane k-turn"') == 60
    assert "?before=11.0" in html
    assert page(root, "runs_run_change", run.id, before="11.0").count('class="k-lane k-turn"') == 10
    first = page(root, "runs_run_change", run.id, after="0")
    assert "run.started" in first
    for hostile in ({"before": "x.y"}, {"after": "-1"}, {"after": "9" * 40}, {"before": "²"}):
        page(root, "runs_run_change", run.id, **hostile)


def test_bodies_need_their_own_right():
    approval = console.waiting_run(amount=31337, to="ACME")
    client = console.logged_in(console.person("rita", "runs.view_run", "runs.view_operation"))
    assert "31337" not in page(client, "runs_operation_change", approval.operation_id)
    reader = console.logged_in(console.person("ray", "runs.view_operation", "runs.view_artifact"))
    assert "31337" in page(reader, "runs_operation_change", approval.operation_id)


def decide(client, approval, **form):
    return client.post(reverse("admin:approvals_approval_decide", args=[approval.id]), form, follow=True)


def approver(name="anna", **more):
    return console.logged_in(console.viewer(name, "approvals.decide_approval"))


def test_approve_is_written_in_the_name_of_the_session():
    approval = console.waiting_run()
    answer = decide(approver(), approval, verdict="approve", decided_by="mallory", name="mallory")
    approval.refresh_from_db()
    assert (approval.state, approval.decided_by) == ("granted", "anna")
    assert "granted by anna" in answer.content.decode()
    assert LogEntry.objects.filter(user__username="anna", object_id=str(approval.id)).count() == 1


def test_reject_needs_a_reason():
    approval, client = console.waiting_run(), approver()
    assert "say why it is rejected" in decide(client, approval, verdict="reject").content.decode()
    decide(client, approval, verdict="reject", reason="not this quarter")
    approval.refresh_from_db()
    assert (approval.state, approval.reason) == ("rejected", "not this quarter")
    assert Operation.objects.get(id=approval.operation_id).state == "rejected"


def test_the_second_person_is_told_who_was_first():
    approval = console.waiting_run()
    decide(approver("anna"), approval, verdict="approve")
    html = decide(approver("ben"), approval, verdict="reject", reason="no").content.decode()
    assert "granted by anna" in html
    assert "already_decided" in html


def test_four_eyes_hold_for_a_superuser_too():
    """C44, at this door."""
    client = console.logged_in(console.person("root", superuser=True))
    approval = console.waiting_run(by="root", rule={"four_eyes": True})
    assert "its calls need somebody else" in page(client, "approvals_approval_change", approval.id)
    assert "may not approve" in decide(client, approval, verdict="approve").content.decode()
    assert Approval.objects.get(id=approval.id).state == "waiting"
    decide(client, approval, verdict="reject", reason="changed my mind")
    assert Approval.objects.get(id=approval.id).state == "rejected"


def test_a_request_for_a_group_is_for_its_members():
    approval = console.waiting_run(rule={"group": "treasury"})
    stranger = approver("anna")
    assert "Only members of the group treasury" in page(stranger, "approvals_approval_change", approval.id)
    assert str(approval.id) not in page(stranger, "approvals_approval_changelist", mine="1")
    decide(stranger, approval, verdict="approve")
    assert Approval.objects.get(id=approval.id).state == "waiting"
    member = console.viewer("ben", "approvals.decide_approval")
    member.groups.add(Group.objects.create(name="treasury"))
    decide(console.logged_in(member), approval, verdict="approve")
    assert Approval.objects.get(id=approval.id).decided_by == "ben"


def test_after_the_deadline_nothing_is_offered_and_nothing_is_applied():
    approval, client = console.waiting_run(rule={"deadline_seconds": 1}), approver()
    until_sync(lambda: console.is_late(approval))
    html = page(client, "approvals_approval_change", approval.id)
    assert "The deadline has passed" in html
    assert 'value="approve"' not in html
    assert "nothing was applied" in decide(client, approval, verdict="approve").content.decode()
    assert Approval.objects.get(id=approval.id).state == "waiting"
    assert Decision.objects.get(approval=approval).refusal == "expired"


def test_a_call_with_characters_that_nobody_sees_is_shown_with_them():
    approval = console.waiting_run(to="ACME\u202egpj.exe", note="p\u0430ypal", path="a\u200bb", nul="x\u0007y")
    html = page(approver(), "approvals_approval_change", approval.id)
    for wanted in ("U+202E", "U+200B", "2 characters that the eye cannot see", "p\u0430ypal"):
        assert wanted in html
    assert "\u202e" not in html
    assert "\u200b" not in html
    assert "Look-alikes" in html


def test_the_queue_has_the_nearest_deadline_first_and_offers_no_bulk_approval():
    console.waiting_run(tool="in-a-week", rule={"deadline_seconds": 7 * 24 * 3600})
    console.waiting_run(tool="in-an-hour", rule={"deadline_seconds": 3600})
    html = page(approver(), "approvals_approval_changelist", state="waiting")
    assert html.index("in-an-hour") < html.index("in-a-week")
    offered = re.findall(r'<option value="(\w+)"', html)
    assert offered == ["reject_selected"]


def test_resolve_writes_the_verdict_with_note_and_name():
    operation = console.uncertain_run()
    client = console.logged_in(console.viewer("olga", "runs.reconcile_operation"))
    url = reverse("admin:runs_operation_resolve", args=[operation.id])
    assert "a note must say" in client.post(url, {"verdict": "occurred"}, follow=True).content.decode()
    assert "the verdict must be one of" in client.post(url, {"verdict": "?", "note": "n"}, follow=True).content.decode()
    client.post(url, {"verdict": "occurred", "note": "it is on the statement", "result": "ref 99"})
    operation.refresh_from_db()
    assert (operation.state, operation.verdict, operation.reconciled_by) == ("reconciled", "occurred", "olga")
    html = client.post(url, {"verdict": "none", "note": "no"}, follow=True).content.decode()
    assert "not uncertain" in html
    assert "ref 99" in html
    assert Event.objects.filter(run_id=operation.run_id, type="operation.reconciled").count() == 1


def test_cancel_withdraws_what_waits_and_says_so():
    approval = console.waiting_run()
    client = console.logged_in(console.viewer("carl", "runs.cancel_run"))
    url = reverse("admin:runs_run_cancel", args=[approval.run_id])
    assert "is asked to stop" in client.post(url, {"reason": "wrong customer"}, follow=True).content.decode()
    run = Run.objects.get(id=approval.run_id)
    assert (run.state, run.cancel_requested_by, run.cancel_reason) == ("cancelling", "carl", "wrong customer")
    assert Approval.objects.get(id=approval.id).state == "withdrawn"


def test_cancel_from_the_list_reports_for_each_run():
    running = console.waiting_run()
    ended = console.begin(make_agent(make_project(), [says("x")], []))
    console.end(ended)
    client = console.logged_in(console.viewer("carl", "runs.cancel_run"))
    form = {"action": "cancel_selected", "_selected_action": [str(running.run_id), str(ended.id)]}
    html = client.post(reverse("admin:runs_run_changelist"), form, follow=True).content.decode()
    assert "is asked to stop" in html
    assert "the run has already completed" in html


def test_an_agent_is_changed_by_a_new_version_only(root):
    version = make_agent(make_project(), [says("x")], [])
    url = reverse("admin:runs_agent_new_version", args=[version.agent_id])
    assert "on_uncertain: wait" in root.get(url).content.decode()
    root.post(url, {"definition": f"model: {version.definition['model']}\ninstructions: be brief\n"})
    newest = AgentVersion.objects.filter(agent=version.agent).order_by("-version").first()
    assert (newest.version, newest.definition["instructions"], newest.created_by) == (2, "be brief", "root")
    assert "k-added" in page(root, "runs_agent_change", version.agent_id)
    for wrong in ("model: [", "model: 7", "- a", "model: scripted:x\nfoo: 1", "model: scripted:x\ntools: [nope]"):
        html = root.post(url, {"definition": wrong}).content.decode()
        assert "bg-red-100" in html, wrong
    assert version.agent.versions.count() == 2


def test_a_policy_is_changed_by_a_new_version_only(root):
    rule = {"project": "p", "name": "payments", "agent": "*", "tool": "pay*", "answer": "require", "effect": "write",
            "deadline_seconds": 60, "on_expiry": "reject", "group": ""}  # fmt: skip
    url = reverse("admin:approvals_policy_add")
    root.post(url, rule)
    root.post(url, rule | {"four_eyes": "on"})
    rows = list(Policy.objects.order_by("version").values_list("version", "four_eyes", "retired_at", "created_by"))
    assert [(row[0], row[1], row[2] is None, row[3]) for row in rows] == [
        (1, False, False, "root"), (2, True, True, "root"),
    ]  # fmt: skip
    newest = Policy.objects.get(version=2)
    assert "pay*" in root.get(url, {"from": str(newest.id)}).content.decode()
    form = {"action": "retire", "_selected_action": [str(newest.id)]}
    assert "retired" in root.post(reverse("admin:approvals_policy_changelist"), form, follow=True).content.decode()
    assert not Policy.objects.filter(retired_at__isnull=True).exists()

"""RECONCILE_FOUR_EYES: whoever wanted an effect does not say what became of it, whichever door they take."""

from __future__ import annotations

from dataclasses import replace

import pytest
from django.core.management import CommandError, call_command
from django.db import transaction
from django.urls import reverse

from approvals import services as approvals
from approvals.contracts import Decider
from kernel_project.primitives.errors import Forbidden
from outbox import services as outbox
from outbox.contracts import Actor
from runs import keys
from runs.boundary import reconcile, second_person
from runs.loop.turns import run_event
from runs.models import Operation
from tests import console
from tests.api_client import api_for, is_problem, make_person

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def in_force(settings):
    settings.RECONCILE_FOUR_EYES = True


def say(operation: Operation, name: str) -> Operation:
    by = Actor(id=name, type="human")
    return reconcile.resolve(operation.id, project=operation.project_id, verdict="none", by=by, note="looked it up")


def approved_and_lost() -> Operation:
    """Olga said yes to the call; then nobody knew what became of it."""
    approval = console.waiting_run()
    approvals.decide(approval.id, approval.project, Decider(name="olga", groups=frozenset(), via="api"), "approve")
    operation = Operation.objects.get(id=approval.operation_id)
    console.lose(operation)
    return operation


def test_who_started_the_run_may_not_under_any_account_and_others_may():
    for name in ("olga", "olga-admin"):
        person = console.person(name)
        person.email = "olga@example.com"
        person.save()
    operation = console.uncertain_run(by="olga")
    for name in ("olga", "Olga", "olga-admin"):
        with pytest.raises(Forbidden, match="you started this run"):
            say(operation, name)
    assert say(operation, "anna").verdict == "none"


def test_who_approved_the_call_may_not():
    operation = approved_and_lost()
    with pytest.raises(Forbidden, match="you approved this call"):
        say(operation, "olga")
    assert say(operation, "anna").state == "reconciled"


def test_who_made_the_key_that_started_the_run_may_not():
    console.person("olga")
    project = console.make_project()
    key, _ = keys.create(project=project.slug, name="ci", scopes=["runs:start"], by="Olga")
    operation = console.uncertain_run(project, by=f"key:{key.prefix}")
    with pytest.raises(Forbidden, match="you started this run"):
        say(operation, "olga")
    as_herself = Decider(name="olga", groups=frozenset(), via="api")
    assert approvals.is_own(f"key:{key.prefix}", as_herself)
    assert not approvals.is_own("key:000000000000", as_herself)
    assert say(operation, "anna").state == "reconciled"


def test_who_let_it_go_on_before_or_wrote_to_it_may_not():
    operation = console.uncertain_run(by="billing-service")
    for number, (kind, name) in enumerate([("run.resumed", "olga"), ("run.resumed", "ida"), ("run.message", "vera")]):
        data = {"status": "running", "reason": ""} if kind == "run.resumed" else {"number": 1, "message_ref": "r"}
        event = run_event(operation.run, kind, data)
        with transaction.atomic():
            outbox.append([replace(event, attempt=number + 1, actor=Actor(id=name, type="human"))])
    for name, part in (("olga", "let this run go on"), ("ida", "let this run go on"), ("vera", "wrote to this run")):
        with pytest.raises(Forbidden, match=part):
            say(operation, name)
    assert say(operation, "anna").state == "reconciled"


def test_who_had_a_part_in_the_run_above_may_not():
    operation = console.uncertain_run(by="billing-service")
    above = console.uncertain_run(by="olga").run
    operation.run.parent_id = above.id
    assert second_person.why_not(operation, "olga") == "you started this run"
    assert second_person.why_not(operation, "anna") == ""


def test_it_is_off_unless_it_is_set(settings):
    settings.RECONCILE_FOUR_EYES = False
    assert say(console.uncertain_run(by="olga"), "olga").state == "reconciled"


def test_the_api_and_the_command_refuse_alike():
    operation = console.uncertain_run(by="olga")
    api = api_for(operation.project, user=make_person("olga"))
    answer = api.post(f"/operations/{operation.id}/reconcile", {"verdict": "none", "note": "n"})
    is_problem(answer, 403, "forbidden")
    with pytest.raises(CommandError, match="somebody else must say"):
        call_command("reconcile", "resolve", str(operation.id), "--verdict", "none", "--note", "n", "--by", "olga")
    operation.refresh_from_db()
    assert operation.state == "uncertain"


def test_the_console_offers_nothing_says_why_and_refuses():
    operation = console.uncertain_run(by="vera")
    client = console.logged_in(console.viewer("vera", "runs.reconcile_operation"))
    html = client.get(reverse("admin:runs_operation_change", args=[operation.id])).content.decode()
    assert "Somebody else must say what became of it" in html
    assert "Resolve…" not in html
    told = client.post(
        reverse("admin:runs_operation_resolve", args=[operation.id]), {"verdict": "none", "note": "n"}, follow=True
    )
    assert "you started this run" in told.content.decode()
    operation.refresh_from_db()
    assert operation.state == "uncertain"

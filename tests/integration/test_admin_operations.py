"""An operation's page in the console: what it tells, and what may be done from it."""

from __future__ import annotations

import pytest
from django.contrib.admin.models import LogEntry
from django.db.models.functions import Now
from django.urls import reverse

from runs.boundary import artifacts
from runs.models import Operation, Run
from tests import console
from tests.integration.test_api_operations import put, void
from tests.kernel import make_agent, make_project, says

pytestmark = pytest.mark.django_db(transaction=True)


def page(client, operation) -> str:
    return client.get(reverse("admin:runs_operation_change", args=[operation.id])).content.decode()


def post(client, door: str, operation, **form) -> str:
    url = reverse(f"admin:runs_operation_{door}", args=[operation.id])
    return client.post(url, form, follow=True).content.decode()


def olga(*permissions: str):
    return console.logged_in(console.viewer("olga", *permissions))


def test_an_uncertain_operation_can_be_looked_for_on_demand():
    operation, client = console.uncertain_run(), olga("runs.reconcile_operation")
    assert "Ask the other side" not in page(client, operation)
    assert "only a person" in post(client, "probe", operation)
    put(operation, probes=True, probe_attempts=10)
    assert "Ask the other side" in page(client, operation)
    assert "is being asked" in post(client, "probe", operation)
    assert Operation.objects.filter(id=operation.id, next_probe_at__lte=Now()).exists()
    assert LogEntry.objects.filter(object_id=str(operation.id)).count() == 2


def test_the_evidence_of_a_verdict_is_kept_and_shown():
    operation, client = console.uncertain_run(), olga("runs.reconcile_operation")
    evidence = "line 7: <script>paid</script>"
    post(client, "resolve", operation, verdict="occurred", note="it is on the statement", evidence=evidence)
    operation.refresh_from_db()
    assert artifacts.read(operation.run_id, operation.evidence_digest) == evidence.encode()
    html = page(client, operation)
    assert operation.evidence_digest in html
    assert "must be at most" in post(
        client, "resolve", console.uncertain_run(), verdict="none", note="n", evidence="x" * 70_000
    )


def test_a_twin_and_every_request_also_a_voided_one_are_shown():
    first, second = console.uncertain_run(), console.uncertain_run()
    put(second, twin_id=first.id)
    approval = console.waiting_run()
    waiting = Operation.objects.get(id=approval.operation_id)
    void(approval)
    client = olga()
    assert str(first.id) in page(client, second)
    assert "voided" in page(client, waiting)


def paid():
    """A call that happened, of a tool that declares how it is undone."""
    project = make_project()
    console.make_scene_tools(
        project,
        pay={"idempotent_for_seconds": 60, "compensation": {"tool": "unpay"}},
        unpay={"idempotent_for_seconds": 60},
    )
    run = console.begin(make_agent(project, [says("done")], ["pay"]))
    [operation] = console.turn(run, 1, calls=[("pay", {"amount": 7})])
    console.succeed(operation)
    operation.refresh_from_db()
    return operation


@pytest.mark.usefixtures("temporal_server")
def test_an_effect_is_undone_from_its_page_in_the_name_of_the_session():
    operation, client = paid(), olga("runs.compensate_operation")
    assert "Undo…" in page(client, operation)
    assert "a note must say why" in post(client, "compensate", operation, note=" ")
    assert "undoes it" in post(client, "compensate", operation, note="wrong customer", by="mallory")
    run = Run.objects.get(compensates_id=operation.id)
    assert run.started_by == "olga"
    html = page(client, operation)
    assert "Undo…" not in html
    assert str(run.id) in html
    assert "Its effect still stands" in html
    assert "undoes it already" in post(client, "compensate", operation, note="again")


def test_a_failed_compensation_stays_on_the_page_of_what_still_stands():
    operation, client = paid(), olga("runs.compensate_operation")
    undoing = console.begin(make_agent(operation.project, [says("x")], []), by="olga")
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("SET session_replication_role = replica")
        cursor.execute("UPDATE runs_run SET compensates_id = %s WHERE id = %s", [operation.id, undoing.id])
        cursor.execute("SET session_replication_role = DEFAULT")
    console.end(undoing, "failed", "compensation_rejected", "the effect still stands")
    html = page(client, operation)
    assert "Its effect still stands" in html
    assert "Undo…" in html


def test_who_may_only_look_is_offered_and_allowed_nothing():
    operation, unclear, client = paid(), console.uncertain_run(), olga()
    put(unclear, probes=True)
    assert "Undo…" not in page(client, operation)
    assert "Ask the other side" not in page(client, unclear)
    for door, row in (("compensate", operation), ("probe", unclear)):
        url = reverse(f"admin:runs_operation_{door}", args=[row.id])
        assert client.post(url, {"note": "n"}).status_code == 403
        assert client.get(url).status_code in (403, 405)
    assert not Run.objects.filter(compensates_id__isnull=False).exists()

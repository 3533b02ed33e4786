"""manage.py verify: quiet over a healthy database, and each check can fail."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, transaction

from approvals import services
from approvals.models import Approval
from kernel_project import verify
from outbox.contracts import Actor
from runs.boundary import reconcile
from runs.boundary.contracts import NotSent
from tests.boundary_scene import committed, decider, make_scene, perform_now

pytestmark = pytest.mark.usefixtures("committed")
__all__ = ["committed"]

BROKEN = {
    "attempt_has_its_intent": "UPDATE runs_operation SET attempt = 2 WHERE id = %(uncertain)s",
    "attempt_has_one_end": "UPDATE runs_operation SET state = 'dispatched' WHERE id = %(done)s",
    "refusal_is_told": "UPDATE runs_operation SET state = 'withdrawn' WHERE id = %(done)s",
    "verdict_is_told": "DELETE FROM outbox_event WHERE type = 'operation.reconciled'",
    "settled_has_result_or_reason": (
        "ALTER TABLE runs_operation DROP CONSTRAINT operation_answer_is_kept; "
        "UPDATE runs_operation SET result_digest = '' WHERE id = %(done)s"
    ),
    "reference_is_claimed": "DELETE FROM runs_artifact WHERE run_id = %(run)s",
    "uncertain_has_a_way_out": "UPDATE runs_operation SET needs_attention = false WHERE id = %(uncertain)s",
    "twins_are_not_out_together": (
        "DROP INDEX operation_no_twin_in_flight; "
        "ALTER TABLE runs_operation DROP CONSTRAINT operation_dispatch_is_whole; "
        "ALTER TABLE runs_operation DROP CONSTRAINT operation_failure_is_named; "
        "UPDATE runs_operation SET state = 'uncertain', name = 'n', error_class = 'e', call_digest = 'd', "
        "project_id = (SELECT project_id FROM runs_operation WHERE id = %(done)s)"
    ),
    "consent_was_given": "UPDATE runs_operation SET policy_answer = 'require' WHERE id = %(done)s",
    "denial_never_left": "UPDATE runs_operation SET state = 'denied' WHERE id = %(done)s",
    "approval_and_operation_agree": "UPDATE approvals_approval SET state = 'waiting', decided_at = NULL",
    "binding_is_intact": "UPDATE approvals_approval SET binding = binding || ' '",
    "decision_is_one": "DELETE FROM approvals_decision",
    "sequence_has_no_gap": "DELETE FROM outbox_event WHERE sequence = 1",
    "event_has_its_stream": "DELETE FROM outbox_stream",
    "waiting_stream_is_ready": (
        "ALTER TABLE outbox_stream DROP CONSTRAINT stream_ready_when_behind; UPDATE outbox_stream SET ready_at = NULL"
    ),
    "parked_event_exists": (
        "INSERT INTO outbox_parkedevent (event_id, run_id, sequence, state, reason, last_error, attempts, resolved_by, "
        "note) VALUES (%(run)s, %(run)s, 1, 'parked', 'conflict', '', 1, '', '')"
    ),
    "ended_run_has_nothing_open": (
        "UPDATE runs_run SET state = 'completed', ended_at = now() WHERE id = %(open_run)s"
    ),
    "repeat_was_allowed": "UPDATE runs_operation SET attempt = 2 WHERE id = %(done)s",
    "doubt_is_kept": "UPDATE runs_operation SET attempt = 2, state = 'failed' WHERE id = %(uncertain)s",
    "policy_was_asked": "UPDATE runs_operation SET policy_answer = '' WHERE id = %(done)s",
    "effect_was_marked": "UPDATE runs_operation SET sending_at = NULL WHERE id = %(done)s",
    "intent_names_its_call": "UPDATE runs_operation SET arguments_digest = repeat('0', 64) WHERE id = %(done)s",
    "outcome_is_what_was_told": "UPDATE runs_operation SET state = 'tool_error' WHERE id = %(done)s",
    "failure_is_classified": (
        "UPDATE outbox_event SET envelope = replace(envelope, '\"effect\":\"uncertain\"', '\"effect\":\"fine\"')"
    ),
    "approval_is_told": "DELETE FROM outbox_event WHERE type = 'approval.rejected'",
    "started_run_is_told": "UPDATE runs_run SET state = 'completed', ended_at = now() WHERE id = %(run)s",
    "nothing_starts_after_the_end": (
        "UPDATE outbox_event SET sequence = sequence + 10 WHERE type = 'tool.started'; "
        "UPDATE outbox_event SET type = 'run.cancelled' WHERE type = 'tool.completed'"
    ),
    "envelope_is_its_row": "UPDATE outbox_event SET type = 'tool.failed' WHERE type = 'tool.completed'",
    "cause_came_before": "UPDATE outbox_event SET sequence = sequence + 10 WHERE type = 'tool.started'",
    "seen_was_sent": "UPDATE outbox_stream SET seen = head + 1",
    "unique_call_left_once": (
        "UPDATE runs_operation SET unique_key = 'k', "
        "project_id = (SELECT project_id FROM runs_operation WHERE id = %(done)s) WHERE id IN (%(done)s, %(uncertain)s)"
    ),
    "ended_run_is_told": "UPDATE runs_run SET state = 'completed', ended_at = now() WHERE id = %(run)s",
}  # fmt: skip


def healthy() -> dict[str, object]:
    """A database in which a good deal has happened, all of it right."""
    done, uncertain, judged, gated = (
        make_scene("opaque"), make_scene("opaque", ["effect"]), make_scene("opaque", ["effect"]),
        make_scene("opaque", allow=False),
    )  # fmt: skip
    for scene in (done, uncertain, judged):
        perform_now(scene.id)
    reconcile.resolve(
        judged.id, project=judged.project.slug, verdict="none", by=Actor(id="olga", type="human"), note="looked"
    )
    services.decide(Approval.objects.get(operation_id=gated.id).id, gated.project.slug, decider(), "reject")
    waiting = make_scene("opaque", allow=False)
    return {"done": done.id, "uncertain": uncertain.id, "run": done.run.id, "open_run": waiting.run.id}


def test_a_doubt_that_is_kept_or_was_cleared_breaks_no_rule(monkeypatch):
    monkeypatch.setattr("runs.boundary.perform.AGAIN_PAUSES_SECONDS", (0.0,))

    def unsent(_):
        raise NotSent("no route")

    kept, cleared = make_scene("keyed", ["effect", unsent]), make_scene("keyed", ["effect", unsent, unsent])
    assert [perform_now(scene.id).state for scene in (kept, cleared)] == ["uncertain", "uncertain"]
    ann = Actor(id="ann", type="human")
    reconcile.resolve(cleared.id, project=cleared.project.slug, verdict="none", by=ann, note="looked")
    assert perform_now(cleared.id).state == "failed"
    with connection.cursor() as cursor:
        assert verify.check(cursor, "doubt_is_kept", verify.journal_from()).examples == []


def found(report: list[verify.Check]) -> set[str]:
    return {check.id for check in report if not check.ok}


def test_every_check_has_a_way_to_fail():
    assert set(BROKEN) == set(verify.names())


def test_a_healthy_database_breaks_no_rule():
    healthy()
    out = io.StringIO()
    call_command("verify", "--json", stdout=out)
    report = json.loads(out.getvalue())
    assert report["ok"]
    assert {check["id"] for check in report["checks"]} == {*BROKEN, "audit_chain_is_whole"}


@pytest.mark.parametrize("name", sorted(BROKEN))
def test_each_check_can_fail(name):
    names = healthy()
    with undone() as cursor:
        cursor.execute(BROKEN[name], names)
        assert verify.check(cursor, name, verify.journal_from()).count > 0


@contextlib.contextmanager
def undone() -> Iterator[Any]:
    """A cursor that no trigger hinders, and whose work is rolled back."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        cursor.execute("SET LOCAL kernel.purge = 'on'")
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        yield cursor
        transaction.set_rollback(True)


def test_events_that_were_dropped_with_their_month_are_not_missed():
    """What older runs told is gone on purpose; a rule that needs it must not cry."""
    healthy()
    later = UUID(int=(1 << 128) - 1)
    with undone() as cursor:
        cursor.execute("DELETE FROM outbox_event")
        cursor.execute("DELETE FROM outbox_stream")
        assert [name for name in verify.names() if verify.check(cursor, name, later).count] == []


def test_the_command_ends_with_an_error_when_a_rule_is_broken(monkeypatch):
    monkeypatch.setattr(verify, "run", lambda: [verify.Check("a_rule", "It holds.", 1, ["x"])])
    with pytest.raises(CommandError, match="a_rule"):
        call_command("verify", stdout=io.StringIO())

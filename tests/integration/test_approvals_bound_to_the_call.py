"""A yes covers exactly one call: what was shown is what runs, once, or nothing runs."""

from __future__ import annotations

import pytest
from django.db import IntegrityError, connection, transaction

from approvals import services
from approvals.models import Approval, Decision, Policy
from approvals.services import AlreadyDecided, Expired, Refused
from kernel_project.primitives.errors import Invalid
from outbox.models import Event
from runs.models import Artifact, Operation, Tool
from tests.boundary_scene import at_once, committed, decider, make_scene, perform_now, rule, stop_the_clock_at, told

pytestmark = pytest.mark.usefixtures("committed")
__all__ = ["committed"]


def gated(**more):
    scene = make_scene("opaque", allow=False, **more)
    assert scene.row().state == "awaiting_approval"
    return scene


def request(scene) -> Approval:
    return Approval.objects.exclude(state="voided").get(operation_id=scene.id)


def decide(scene, verdict="approve", who=None, reason=""):
    return services.decide(request(scene).id, scene.project.slug, who or decider(), verdict, reason)


def test_without_a_yes_it_does_not_leave():
    scene = gated()
    assert perform_now(scene.id).state == "awaiting_approval"
    assert scene.outside.calls == []


def test_with_a_yes_it_runs_once():
    scene = gated()
    decide(scene)
    assert [perform_now(scene.id).state for _ in range(2)] == ["succeeded"] * 2
    assert len(scene.outside.effects) == 1


def test_the_binding_holds_the_stored_bytes_of_the_arguments():
    scene = gated()
    stored = bytes(Artifact.objects.get(run=scene.run, digest=scene.row().arguments_digest).body).decode()
    assert f'"arguments":{stored},' in request(scene).binding


@pytest.mark.parametrize(
    "change",
    [
        {"configuration": {"error_effect": "occurred"}},
        {"remote_name": "another-function"},
        {"definition_digest": "e" * 64},
    ],
)
def test_a_call_that_is_no_longer_the_approved_one_is_asked_anew(change):
    scene = gated()
    decide(scene)
    Tool.objects.filter(id=scene.tool.id).update(**change)
    assert perform_now(scene.id).state == "awaiting_approval"
    assert scene.outside.calls == []
    states = Approval.objects.filter(operation_id=scene.id).order_by("requested_at").values_list("state", flat=True)
    assert list(states) == ["voided", "waiting"]
    assert told(scene.id) == ["approval.requested", "approval.granted", "approval.rejected", "approval.requested"]


def test_a_call_that_was_asked_anew_runs_after_the_second_yes():
    scene = gated()
    decide(scene)
    Tool.objects.filter(id=scene.tool.id).update(definition_digest="e" * 64)
    perform_now(scene.id)
    decide(scene)
    assert perform_now(scene.id).state == "succeeded"


def test_a_definition_that_the_arguments_do_not_fit_any_more_blocks_the_call():
    scene = gated()
    decide(scene)
    Tool.objects.filter(id=scene.tool.id).update(definition_digest="e" * 64, input_schema={"required": ["amount"]})
    assert perform_now(scene.id).state == "blocked"
    assert scene.row().error_class == "invalid_arguments"


def test_another_rule_than_the_one_that_asked_asks_anew():
    scene = gated()
    decide(scene)
    rule(scene.project, "require", tool=scene.tool.name, group="finance")
    assert perform_now(scene.id).state == "awaiting_approval"
    assert request(scene).group == "finance"
    with pytest.raises(Refused):
        decide(scene)


def test_a_rule_that_forbids_it_by_now_wins_over_an_earlier_yes():
    """C33: a denial can never turn into an execution."""
    scene = gated()
    decide(scene)
    rule(scene.project, "deny", tool=scene.tool.name)
    assert perform_now(scene.id).state == "denied"
    assert request_states(scene) == ["voided"]


def test_a_rule_that_allows_it_by_now_does_not_take_the_yes_back():
    scene = gated()
    decide(scene)
    rule(scene.project, "allow")
    assert perform_now(scene.id).state == "succeeded"


def test_a_rule_that_allows_it_by_now_does_not_undo_a_no():
    """C33."""
    scene = gated()
    decide(scene, "reject", reason="never")
    rule(scene.project, "allow", tool=scene.tool.name)
    assert perform_now(scene.id).state == "rejected"
    assert scene.outside.calls == []


def request_states(scene) -> list[str]:
    return list(Approval.objects.filter(operation_id=scene.id).values_list("state", flat=True))


def test_tampering_with_the_stored_arguments_is_noticed():
    from runs.boundary.artifacts import Corrupt

    scene = gated()
    decide(scene)
    Artifact.objects.filter(run=scene.run, digest=scene.row().arguments_digest).update(body=b'{"text":"y"}')
    with pytest.raises(Corrupt):
        perform_now(scene.id)
    assert scene.outside.calls == []


def test_the_database_keeps_what_was_asked_and_what_was_decided():
    scene = gated()
    decide(scene)
    asked = Approval.objects.filter(operation_id=scene.id)
    for change in ({"binding": "{}"}, {"tool": "other"}, {"state": "waiting"}, {"state": "rejected"}):
        with pytest.raises(IntegrityError), transaction.atomic():
            asked.update(**change)
    with pytest.raises(IntegrityError), transaction.atomic():
        Decision.objects.filter(approval__operation_id=scene.id).update(actor="somebody else")


def test_a_version_of_a_rule_is_never_changed():
    scene = gated()
    made = rule(scene.project, "require")
    with pytest.raises(IntegrityError), transaction.atomic():
        Policy.objects.filter(id=made.id).update(answer="allow")
    Policy.objects.filter(id=made.id).update(retired_at="2026-01-01T00:00Z")
    with pytest.raises(IntegrityError), transaction.atomic():
        Policy.objects.filter(id=made.id).update(retired_at=None)


@pytest.mark.parametrize("bad", ["infinity", "-infinity", "9999-12-31T00:00Z", "1970-01-01T00:00Z"])
def test_the_database_refuses_a_deadline_that_nobody_could_mean(bad):
    """C39: such a row could not even be read, and would take the whole queue with it."""
    scene = gated()
    with pytest.raises(IntegrityError), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(
            "UPDATE approvals_approval SET deadline_at = %s::timestamptz WHERE operation_id = %s", [bad, scene.id]
        )


@pytest.mark.parametrize("seconds", [0, 366 * 24 * 3600])
def test_a_rule_with_a_deadline_that_nobody_could_mean_is_refused(seconds):
    scene = gated()
    with pytest.raises(Invalid, match="the deadline is from 1 second to 365 days"):
        rule(scene.project, "require", deadline_seconds=seconds)


def pass_deadline(scene) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE approvals_approval SET deadline_at = clock_timestamp() WHERE operation_id = %s", [scene.id]
        )


def test_exactly_at_the_deadline_is_late_and_the_try_is_on_record(monkeypatch):
    """C29."""
    scene = gated()
    stop_the_clock_at(monkeypatch, request(scene).deadline_at)
    with pytest.raises(Expired):
        decide(scene, who=decider("late-larry"))
    tried = Decision.objects.get(approval__operation_id=scene.id)
    assert (tried.actor, tried.applied, tried.refusal) == ("late-larry", False, "expired")


def test_a_yes_in_time_counts_however_late_the_worker_is():
    """C29."""
    scene = gated()
    decide(scene)
    pass_deadline(scene)
    assert services.expire([scene.id]) == 0
    assert perform_now(scene.id).state == "succeeded"


def test_timer_and_beat_end_a_request_once():
    for _ in range(3):
        scene = gated()
        pass_deadline(scene)
        at_once(*[lambda s=scene: services.expire([s.id])] * 3, *[services.expire_due] * 3)
        assert scene.row().state == "expired"
        assert told(scene.id) == ["approval.requested", "tool.blocked", "approval.timed_out"]


def test_a_decision_and_the_deadline_at_once_have_one_outcome():
    for _ in range(5):
        scene = gated()
        with connection.cursor() as cursor:
            cursor.execute(
                "UPDATE approvals_approval SET deadline_at = clock_timestamp() + interval '30 ms' "
                "WHERE operation_id = %s",
                [scene.id],
            )
        at_once(*[lambda s=scene: decide(s)] * 2, *[lambda s=scene: services.expire([s.id])] * 4)
        services.expire([scene.id])
        state, row = request(scene).state, scene.row().state
        assert (state, row) in (("granted", "awaiting_approval"), ("expired", "expired"))


def test_refused_tries_stay_on_record_although_the_door_raises():
    scene = gated()
    rule_group = rule(scene.project, "require", group="finance", tool=scene.tool.name)
    other = scene.another(scene.run)
    asked = Approval.objects.get(operation_id=other.id)
    assert asked.policy_id == rule_group.id
    with pytest.raises(Refused):
        services.decide(asked.id, scene.project.slug, decider("mallory"), "approve")
    assert Decision.objects.get(approval=asked).refusal == "may_not_decide"


def test_inside_another_transaction_it_refuses_to_run_because_the_record_could_be_lost():
    scene = gated()
    with pytest.raises(RuntimeError), transaction.atomic():
        decide(scene)
    assert request(scene).state == "waiting"


@pytest.mark.parametrize("reason", ["a\x00b", "half \ud800", "x" * (services.REASON_BYTES_MAX + 1)])
def test_a_reason_that_cannot_be_kept_is_refused(reason):
    scene = gated()
    with pytest.raises(Invalid):
        decide(scene, "reject", reason=reason)
    assert request(scene).state == "waiting"


def test_a_no_closes_the_call_with_the_whole_reason_as_data():
    """C36."""
    scene, reason = gated(), '🙅 wrong customer {"role":"system"} ' + "é" * 4_900
    decide(scene, "reject", reason=reason)
    row = scene.row()
    assert (row.state, row.error_message) == ("rejected", reason)


def test_a_withdrawn_request_can_no_longer_be_decided():
    """C31, at the service."""
    scene = gated()
    with transaction.atomic():
        services.withdraw(scene.run.id, "starter")
    assert scene.row().state == "withdrawn"
    with pytest.raises(AlreadyDecided):
        decide(scene)


def test_a_granted_request_is_told_with_actor_and_rule():
    scene = gated()
    decide(scene, who=decider("anna"))
    event = Event.objects.get(operation_id=scene.id, type="approval.granted")
    assert '"actor":{"id":"anna","type":"human"}' in event.envelope
    assert '"policy":"kernel default"' in event.envelope
    assert Operation.objects.get(id=scene.id).policy_answer == "require"

"""More than one person, another group, other arguments, an emergency: one outcome, and only what was seen runs."""

from __future__ import annotations

import json

import pytest
from django.contrib.auth.models import User
from django.db import IntegrityError, connection, transaction

from approvals import services
from approvals.models import Approval, Decision
from approvals.services import AlreadyDecided, Damaged, Expired, Refused
from kernel_project import verify
from kernel_project.primitives.errors import Conflict, Invalid
from outbox.contracts import Actor
from outbox.models import Event
from runs.boundary import artifacts
from runs.loop import endings
from runs.models import Operation, Tool
from tests.boundary_scene import ANY_SCHEMA, at_once, committed, decider, make_scene, perform_now, rule, told

pytestmark = pytest.mark.usefixtures("committed")
__all__ = ["committed"]
AMOUNT = {"type": "object", "properties": {"text": {"type": "string"}, "amount": {"type": "number"}}}


def gated(schema=ANY_SCHEMA, **policy):
    """A call that waits, under a policy if one is described."""
    scene = make_scene("opaque", allow=False, input_schema=schema)
    if policy:
        rule(scene.project, "require", tool=scene.tool.name, **policy)
        scene.operation = scene.another(scene.run)
    assert scene.row().state == "awaiting_approval"
    return scene


def waiting(scene) -> Approval:
    return Approval.objects.exclude(state__in=Approval.REPLACED).get(operation_id=scene.id)


def decide(scene, who, verdict="approve", reason="", **more):
    return services.decide(waiting(scene).id, scene.project.slug, who, verdict, reason, **more)


def edit(scene, arguments, who=None, reason=""):
    return services.edit(waiting(scene).id, scene.project.slug, who or decider("ed"), arguments, reason)


def states(scene) -> list[str]:
    asked = Approval.objects.filter(operation_id=scene.id).order_by("requested_at")
    return list(asked.values_list("state", flat=True))


def pass_deadline(scene) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE approvals_approval SET deadline_at = clock_timestamp() "
            "WHERE operation_id = %s AND state = 'waiting'",
            [scene.id],
        )


def sent(scene) -> dict:
    return json.loads(artifacts.read(scene.run.id, scene.row().arguments_digest))


class TestQuorum:
    def test_the_call_leaves_after_the_last_yes_that_is_needed(self):
        scene = gated(quorum=2)
        assert decide(scene, decider("anna")).state == "waiting"
        assert perform_now(scene.id).state == "awaiting_approval"
        assert decide(scene, decider("bert")).state == "granted"
        assert perform_now(scene.id).state == "succeeded"
        assert told(scene.id)[:3] == ["approval.requested", "approval.voted", "approval.granted"]

    def test_one_person_counts_once_however_often_and_under_which_name(self):
        User.objects.create(username="anna", email="anna@example.com")
        User.objects.create(username="anna-admin", email="Anna@Example.com")
        scene = gated(quorum=2)
        for who in (decider("anna"), decider("anna"), decider("ANNA"), decider("anna-admin")):
            assert decide(scene, who).state == "waiting"
        assert Decision.objects.filter(approval=waiting(scene), applied=True).count() == 1

    def test_one_no_is_enough_also_of_somebody_who_had_said_yes(self):
        scene = gated(quorum=3)
        decide(scene, decider("anna"))
        assert decide(scene, decider("anna"), "reject", "not any more").state == "rejected"
        with pytest.raises(AlreadyDecided):
            decide(scene, decider("bert"))

    def test_who_voted_first_gets_the_outcome_when_asking_again(self):
        scene = gated(quorum=2)
        decide(scene, decider("anna"))
        decide(scene, decider("bert"))
        assert decide(scene, decider("anna")).state == "granted"
        with pytest.raises(AlreadyDecided):
            decide(scene, decider("carl"))

    def test_twenty_at_once_have_one_outcome_with_as_many_votes_as_needed(self):
        scene = gated(quorum=3)
        asked = waiting(scene)
        votes = at_once(
            *(lambda n=n: services.decide(asked.id, scene.project.slug, decider(f"p{n}"), "approve") for n in range(20))
        )
        assert sum(isinstance(vote, Approval) for vote in votes) == 3
        assert Decision.objects.filter(approval=asked, applied=True).count() == 3
        assert sum(isinstance(vote, AlreadyDecided) for vote in votes) == 17

    def test_the_starter_is_none_of_them_with_four_eyes(self):
        scene = gated(quorum=2, four_eyes=True)
        with pytest.raises(Refused):
            decide(scene, decider("starter"))

    def test_the_database_takes_no_vote_too_many(self):
        scene = gated(quorum=1)
        asked = waiting(scene)
        decide(scene, decider("anna"))
        with pytest.raises(IntegrityError), transaction.atomic():
            Decision.objects.create(approval=asked, actor="x", verdict="approve", via="api", applied=True)


class TestBreakGlass:
    def test_a_trusted_person_outside_the_group_approves_alone_and_it_is_on_record(self):
        scene = gated(quorum=2, group="finance", break_glass=True)
        granted = decide(scene, decider("olga", may_break_glass=True), reason="production is down", break_glass=True)
        assert (granted.state, granted.decided_by) == ("granted", "olga")
        assert Decision.objects.get(approval=granted, applied=True).broke_glass
        event = Event.objects.get(operation_id=scene.id, type="approval.granted")
        assert json.loads(event.envelope)["data"]["break_glass"] is True
        assert perform_now(scene.id).state == "succeeded"

    @pytest.mark.parametrize(
        ("policy", "who"),
        [
            ({"group": "finance"}, decider("olga", may_break_glass=True)),
            ({"group": "finance", "break_glass": True}, decider("olga")),
            ({"break_glass": True, "four_eyes": True}, decider("starter", may_break_glass=True)),
        ],
        ids=["the policy does not provide for it", "no right to", "four eyes hold"],
    )
    def test_it_is_refused_and_on_record(self, policy, who):
        scene = gated(**policy)
        with pytest.raises(Refused):
            decide(scene, who, reason="now", break_glass=True)
        assert Decision.objects.get(approval=waiting(scene)).refusal == "may_not_decide"

    def test_it_needs_a_reason(self):
        scene = gated(break_glass=True)
        with pytest.raises(Invalid):
            decide(scene, decider("olga", may_break_glass=True), reason=" ", break_glass=True)

    def test_who_has_said_yes_is_told_that_the_glass_is_for_somebody_else(self):
        User.objects.create(username="olga", email="olga@example.com")
        User.objects.create(username="olga-2", email="olga@example.com")
        scene = gated(quorum=2, break_glass=True)
        decide(scene, decider("olga", may_break_glass=True))
        for name in ("olga", "olga-2"):
            with pytest.raises(Conflict, match="said yes") as refused:
                decide(scene, decider(name, may_break_glass=True), reason="now", break_glass=True)
            assert refused.value.error_code == "already_voted"
        assert waiting(scene).state == "waiting"
        tries = Decision.objects.filter(approval=waiting(scene)).order_by("id").values_list("applied", "refusal")
        assert list(tries) == [(True, ""), (False, "already_voted"), (False, "already_voted")]
        granted = decide(scene, decider("ruth", may_break_glass=True), reason="now", break_glass=True)
        assert granted.state == "granted"
        again = decide(scene, decider("ruth", may_break_glass=True), reason="now", break_glass=True)
        assert again.state == "granted"

    def test_it_does_not_move_the_deadline(self):
        scene = gated(break_glass=True)
        pass_deadline(scene)
        with pytest.raises(Expired):
            decide(scene, decider("olga", may_break_glass=True), reason="late", break_glass=True)

    def test_being_a_superuser_is_no_membership(self):
        scene = gated(group="finance")
        with pytest.raises(Refused):
            decide(scene, decider("root", may_break_glass=True))


class TestEscalation:
    POLICY = {"on_expiry": "escalate", "escalate_to": "board", "group": "finance", "deadline_seconds": 600}

    def test_nobody_decided_so_the_other_group_is_asked_once(self):
        scene = gated(**self.POLICY)
        pass_deadline(scene)
        assert sorted(at_once(*[lambda: services.expire([scene.id])] * 2)) == [0, 1]
        assert states(scene) == ["escalated", "waiting"]
        asked = waiting(scene)
        assert (asked.group, asked.on_expiry, asked.escalate_to) == ("board", "reject", "")
        assert asked.binding == Approval.objects.get(id=asked.supersedes).binding
        assert told(scene.id) == ["approval.requested", "approval.timed_out", "approval.requested"]

    def test_the_first_group_is_late_and_the_other_one_decides(self):
        scene = gated(**self.POLICY)
        first = waiting(scene)
        pass_deadline(scene)
        services.expire([scene.id])
        with pytest.raises(Expired):
            services.decide(first.id, scene.project.slug, decider("fina", "finance"), "approve")
        with pytest.raises(Refused):
            decide(scene, decider("fina", "finance"))
        decide(scene, decider("boris", "board"))
        assert perform_now(scene.id).state == "succeeded"

    def test_nobody_there_decides_either_so_the_call_is_refused(self):
        scene = gated(**self.POLICY)
        for _ in range(2):
            pass_deadline(scene)
            assert services.expire([scene.id]) == 1
        assert states(scene) == ["escalated", "expired"]
        assert scene.row().state == "expired"

    @pytest.mark.parametrize("arguments", [{"amount": 1}, {"amount": 200}], ids=["by the same rule", "by another one"])
    def test_an_edit_stays_with_the_group_that_it_was_passed_on_to(self, arguments):
        scene = gated(AMOUNT, **self.POLICY)
        large = {"path": "$.amount", "range": {"min": 100}}
        rule(scene.project, "require", tool=scene.tool.name, arguments=(large,), **self.POLICY)
        pass_deadline(scene)
        services.expire([scene.id])
        for amount in (0, 0.5):
            made = edit(scene, {"amount": arguments["amount"] + amount}, decider("boris", "board"))
            assert (made.group, made.on_expiry, made.escalate_to) == ("board", "reject", "")
        with pytest.raises(Refused):
            decide(scene, decider("fina", "finance"))
        assert decide(scene, decider("bea", "board")).state == "granted"

    def test_an_edit_that_a_third_group_must_judge_is_asked_of_that_one(self):
        scene = gated(AMOUNT, **self.POLICY)
        large = {"path": "$.amount", "range": {"min": 100}}
        rule(scene.project, "require", tool=scene.tool.name, arguments=(large,), group="legal")
        pass_deadline(scene)
        services.expire([scene.id])
        assert edit(scene, {"amount": 200}, decider("boris", "board")).group == "legal"

    def test_a_cancel_at_the_same_moment_leaves_nothing_waiting(self):
        for _ in range(10):
            scene = gated(**self.POLICY)
            pass_deadline(scene)
            run = scene.run
            at_once(
                lambda scene=scene: services.expire([scene.id]),
                lambda run=run: endings.request_cancel(run.id, run.project_id, by=Actor("ann", "human")),
            )
            assert not Approval.objects.filter(run_id=run.id, state="waiting").exists()
            assert scene.row().state == "withdrawn"


class TestEdit:
    def test_other_arguments_are_a_new_request_and_those_run(self):
        scene = gated(AMOUNT)
        old = waiting(scene)
        made = edit(scene, {"text": "x", "amount": 9.5}, reason="too much")
        assert states(scene) == ["superseded", "waiting"]
        assert (made.supersedes, made.edited_by) == (old.id, "ed")
        with pytest.raises(AlreadyDecided):
            services.decide(old.id, scene.project.slug, decider("anna"), "approve")
        assert perform_now(scene.id).state == "awaiting_approval"
        decide(scene, decider("anna"))
        assert perform_now(scene.id).state == "succeeded"
        assert sent(scene) == {"amount": 9.5, "text": "x"}
        assert scene.row().edited_by == "ed"

    def test_the_first_request_keeps_the_arguments_that_it_was_about(self):
        scene = gated(AMOUNT)
        old = waiting(scene)
        edit(scene, {"amount": 1})
        old.refresh_from_db()
        assert json.loads(old.binding)["arguments"] == {"text": "x"}

    @pytest.mark.parametrize(
        "arguments", [{"amount": "nine"}, [], "x", None, {"text": 5}, {"text": "x"}], ids=lambda value: repr(value)
    )
    def test_what_does_not_fit_the_tool_or_changes_nothing_is_refused(self, arguments):
        scene = gated(AMOUNT)
        with pytest.raises(Invalid):
            edit(scene, arguments)
        assert states(scene) == ["waiting"]

    def test_who_edited_may_not_approve_with_four_eyes_nor_may_who_started(self):
        scene = gated(AMOUNT, four_eyes=True)
        edit(scene, {"amount": 1}, decider("ed"))
        for who in ("ed", "Ed", "starter"):
            with pytest.raises(Refused):
                decide(scene, decider(who))
        assert decide(scene, decider("anna")).state == "granted"

    def test_four_eyes_hold_for_the_editor_also_when_it_is_asked_anew(self):
        scene = gated(AMOUNT, four_eyes=True)
        edit(scene, {"amount": 1}, decider("ed"))
        decide(scene, decider("anna"))
        Tool.objects.filter(id=scene.tool.id).update(definition_digest="e" * 64)
        assert perform_now(scene.id).state == "awaiting_approval"
        with pytest.raises(Refused):
            decide(scene, decider("ed"))

    def test_only_who_may_decide_may_edit_and_in_time(self):
        scene = gated(AMOUNT, group="finance")
        with pytest.raises(Refused):
            edit(scene, {"amount": 1}, decider("ed"))
        pass_deadline(scene)
        with pytest.raises(Expired):
            edit(scene, {"amount": 1}, decider("fina", "finance"))
        tries = Decision.objects.filter(approval=waiting(scene)).order_by("id").values_list("verdict", "refusal")
        assert list(tries) == [("edit", "may_not_decide"), ("edit", "expired")]

    def test_policy_is_asked_about_the_new_arguments(self):
        scene = gated(AMOUNT)
        large = {"path": "$.amount", "range": {"min": 100}}
        rule(scene.project, "deny", tool=scene.tool.name, arguments=({"path": "$.amount", "range": {"min": 10_000}},))
        rule(scene.project, "require", tool=scene.tool.name, arguments=(large,), group="finance")
        with pytest.raises(Conflict, match="denies this call"):
            edit(scene, {"amount": 20_000})
        assert edit(scene, {"amount": 200}).group == "finance"

    def test_the_votes_for_other_arguments_count_no_more(self):
        scene = gated(AMOUNT, quorum=2)
        decide(scene, decider("anna"))
        edit(scene, {"amount": 1}, decider("bert"))
        assert decide(scene, decider("carl")).state == "waiting"

    def test_of_an_edit_and_a_yes_at_once_one_wins(self):
        for _ in range(10):
            scene = gated(AMOUNT)
            asked = waiting(scene)
            at_once(
                lambda scene=scene, asked=asked: services.edit(
                    asked.id, scene.project.slug, decider("ed"), {"amount": 1}
                ),
                lambda scene=scene, asked=asked: services.decide(
                    asked.id, scene.project.slug, decider("al"), "approve"
                ),
            )
            perform_now(scene.id)
            if states(scene) == ["granted"]:
                assert (scene.row().state, sent(scene)) == ("succeeded", {"text": "x"})
            else:
                assert states(scene) == ["superseded", "waiting"]
                assert (scene.row().state, scene.outside.calls) == ("awaiting_approval", [])

    def test_a_cancel_at_the_same_moment_leaves_nothing_waiting(self):
        for _ in range(10):
            scene = gated(AMOUNT)
            asked, run = waiting(scene), scene.run
            at_once(
                lambda scene=scene, asked=asked: services.edit(
                    asked.id, scene.project.slug, decider("ed"), {"amount": 1}
                ),
                lambda run=run: endings.request_cancel(run.id, run.project_id, by=Actor("ann", "human")),
            )
            assert not Approval.objects.filter(run_id=run.id, state="waiting").exists()
            assert scene.row().state == "withdrawn"

    def test_editing_comes_to_an_end(self, monkeypatch):
        monkeypatch.setattr(services, "EDITS_MAX", 2)
        scene = gated(AMOUNT)
        edit(scene, {"amount": 1})
        edit(scene, {"amount": 2})
        with pytest.raises(Conflict, match="edited 2 times"):
            edit(scene, {"amount": 3})

    def test_the_key_in_the_arguments_stays_whatever_was_edited(self):
        scene = make_scene("opaque", allow=False, key_argument="message", input_schema=ANY_SCHEMA)
        edit(scene, {"message": "Pay ACME", "amount": 3})
        assert sent(scene) == {"message": f"Pay ACME\n\nOperation-Id: {scene.id}", "amount": 3}
        edit(scene, sent(scene) | {"amount": 4})
        assert sent(scene) == {"message": f"Pay ACME\n\nOperation-Id: {scene.id}", "amount": 4}

    def test_arguments_change_by_an_edit_alone(self):
        scene = gated(AMOUNT)
        with pytest.raises(IntegrityError), transaction.atomic():
            Operation.objects.filter(id=scene.id).update(arguments_digest="f" * 64)
        decide(scene, decider("anna"))
        perform_now(scene.id)
        with pytest.raises(IntegrityError), transaction.atomic():
            Operation.objects.filter(id=scene.id).update(arguments_digest="f" * 64, edited_by="ed")


def tamper(scene, expression: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET session_replication_role = replica")  # the trigger forbids it, as it should
        cursor.execute(f"UPDATE approvals_approval SET binding = {expression} WHERE operation_id = %s", [scene.id])
        cursor.execute("SET session_replication_role = DEFAULT")


def test_a_damaged_text_can_be_rejected_and_never_approved():
    scene = gated()
    tamper(scene, "binding || ' '")
    with pytest.raises(Damaged):
        decide(scene, decider("anna"))
    assert decide(scene, decider("anna"), "reject", "damaged").state == "rejected"
    tamper(scene, "rtrim(binding)")  # for the invariants below


def test_the_rule_stands_on_the_call_by_id_and_version_and_in_its_events():
    scene = make_scene("opaque", allow=False)
    made = rule(scene.project, "require", tool=scene.tool.name, name="payments")
    operation = scene.another(scene.run)
    assert (operation.policy, operation.policy_id, operation.policy_version) == ("payments v1", made.id, 1)
    services.decide(Approval.objects.get(operation_id=operation.id).id, scene.project.slug, decider("anna"), "approve")
    perform_now(operation.id)
    for event in Event.objects.filter(operation_id=operation.id, type__in=("approval.requested", "tool.started")):
        data = json.loads(event.envelope)["data"]
        assert (data["policy"], data["policy_id"]) == ("payments v1", str(made.id)), event.type


def test_a_rule_may_look_at_the_arguments():
    scene = make_scene("opaque", allow=False)
    rule(scene.project, "allow", tool=scene.tool.name, arguments=({"path": "$.amount", "range": {"max": 100}},))
    rule(scene.project, "deny", tool=scene.tool.name, arguments=({"path": "$.to", "pattern": ".*evil.*"},))
    calls = [{"amount": 100}, {"amount": 101}, {"amount": 5, "to": "evil"}, {"amount": [5]}]
    judged = [scene.another(scene.run, **arguments).state for arguments in calls]
    assert judged == ["proposed", "awaiting_approval", "denied", "awaiting_approval"]


def test_the_invariants_hold_over_all_of_this():
    wrong = {check.id: check.count for check in verify.run() if not check.ok}
    assert wrong == {}

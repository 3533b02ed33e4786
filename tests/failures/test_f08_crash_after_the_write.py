"""F8. The worker dies after the effect and before the outcome is written; or it comes back when it is too late."""

from __future__ import annotations

import asyncio

import pytest

from kernel_project.primitives import keyring
from outbox.contracts import Actor
from outbox.models import Event
from runs.boundary import objects, operations, outcomes, reconcile
from runs.boundary.contracts import EffectResult, NotSent
from runs.boundary.operations import Superseded
from runs.boundary.perform import give_up
from tests.boundary_scene import committed, dispatched, make_scene, perform_now, put_back, quiet, result_of, told

pytestmark = pytest.mark.usefixtures("committed")
__all__ = ["committed"]

PERSON = Actor(id="olga", type="human")
ANSWER = EffectResult(text="paid")


def died_after_the_effect(kind: str):
    """The scene after a worker was killed between the effect and its outcome, and the dead worker's permission."""
    scene = make_scene(kind)
    given = dispatched(scene.id)
    if kind != "keyed":
        operations.mark_sending(given.operation_id, given.attempt)
    scene.outside.effects.append(given.idempotency_key)
    return scene, given


def resolved(scene, verdict: str):
    return reconcile.resolve(scene.id, project=scene.project.slug, verdict=verdict, by=PERSON, note="looked it up")


def test_operation_becomes_uncertain_not_failed():
    scene, _ = died_after_the_effect("opaque")
    assert perform_now(scene.id).state == "uncertain"
    assert scene.row().needs_attention


def test_probe_finds_the_effect_and_settles():
    scene, _ = died_after_the_effect("probed")
    assert perform_now(scene.id).state == "succeeded"


def test_a_living_key_is_used_again():
    scene, _ = died_after_the_effect("keyed")
    assert perform_now(scene.id).state == "succeeded"


@pytest.mark.parametrize("kind", ["opaque", "probed", "keyed"])
def test_effect_is_not_performed_twice(kind):
    scene, _ = died_after_the_effect(kind)
    perform_now(scene.id)
    perform_now(scene.id)
    assert len(scene.outside.effects) == 1


def test_the_verdict_links_to_the_intent():
    scene, _ = died_after_the_effect("opaque")
    perform_now(scene.id)
    resolved(scene, "occurred")
    events = {event.type: event for event in Event.objects.filter(operation_id=scene.id)}
    assert events["operation.reconciled"].caused_by == [events["tool.started"].event_id]


def test_a_late_result_ends_the_uncertain_operation_as_occurred_and_wakes_the_run():
    from runs.models import News

    scene, zombie = died_after_the_effect("opaque")
    perform_now(scene.id)
    assert operations.settle_answer(zombie, ANSWER).state == "reconciled"
    row = scene.row()
    assert (row.verdict, row.reconciled_by, result_of(row)["text"]) == ("occurred", "agent-kernel", "paid")
    assert told(scene.id)[-2:] == ["operation.late_result occurred", "operation.reconciled occurred"]
    assert News.objects.filter(run_id=scene.run.id).exists()


def test_a_late_proof_that_nothing_left_ends_it_as_none():
    scene, zombie = died_after_the_effect("opaque")
    perform_now(scene.id)
    assert operations.settle_not_done(zombie, "NotSent", "refused by the proxy").state == "reconciled"
    assert scene.row().verdict == "none"


def test_a_late_error_answer_that_may_mean_anything_changes_nothing():
    scene = make_scene("opaque", configuration={"error_effect": "uncertain"})
    zombie = dispatched(scene.id)
    operations.mark_sending(zombie.operation_id, 1)
    perform_now(scene.id)
    assert operations.settle_answer(zombie, EffectResult(text="500", is_error=True)).state == "uncertain"


def test_the_same_late_result_told_twice_is_one_piece_of_evidence():
    scene, zombie = died_after_the_effect("opaque")
    perform_now(scene.id)
    operations.settle_answer(zombie, ANSWER)
    operations.settle_answer(zombie, ANSWER)
    assert told(scene.id).count("operation.late_result occurred") == 1


def test_a_settle_whose_commit_nobody_heard_of_is_no_late_result():
    scene = make_scene("opaque")
    given = dispatched(scene.id)
    assert [operations.settle_answer(given, ANSWER).state for _ in range(2)] == ["succeeded"] * 2
    assert told(scene.id) == ["tool.started", "tool.completed"]


def test_a_stale_settle_changes_nothing_while_another_attempt_is_under_way():
    scene = make_scene("keyed")
    zombie = dispatched(scene.id)
    operations.again(operations.interrupted(scene.id), quiet, "uncertain")
    assert operations.settle_answer(zombie, ANSWER).state == "dispatched"
    assert (scene.row().attempt, scene.row().result_digest) == (2, "")
    assert told(scene.id)[-1] == "operation.late_result occurred"


def test_a_stale_failure_and_a_stale_doubt_change_nothing():
    scene = make_scene("keyed")
    zombie = dispatched(scene.id)
    operations.again(operations.interrupted(scene.id), quiet, "uncertain")
    assert operations.settle_failure(zombie, "Boom", "late").state == "dispatched"
    assert operations.settle_uncertain(operations.Unclear(zombie, "Boom", "late")).state == "dispatched"


def test_a_zombie_may_not_send_when_another_attempt_has_taken_over():
    scene = make_scene("opaque")
    zombie = dispatched(scene.id)
    assert perform_now(scene.id).state == "succeeded"  # it had not sent, so it went again
    with pytest.raises(Superseded):
        operations.mark_sending(zombie.operation_id, zombie.attempt)
    assert len(scene.outside.effects) == 1


def test_a_result_that_contradicts_a_verdict_corrects_it_before_it_can_go_again():
    scene, zombie = died_after_the_effect("opaque")
    perform_now(scene.id)
    resolved(scene, "none")
    operations.settle_answer(zombie, ANSWER)
    row = scene.row()
    assert (row.state, row.verdict) == ("reconciled", "occurred")
    assert "olga had said none" in row.note
    assert perform_now(scene.id).state == "reconciled"
    assert len(scene.outside.effects) == 1


def test_a_result_that_comes_when_it_went_again_already_calls_for_a_person():
    scene, zombie = died_after_the_effect("opaque")
    perform_now(scene.id)
    resolved(scene, "none")
    assert perform_now(scene.id).state == "succeeded"
    operations.settle_answer(zombie, ANSWER)
    assert scene.row().needs_attention


def test_what_was_reconciled_as_none_goes_again_as_the_same_operation():
    scene, _ = died_after_the_effect("opaque")
    perform_now(scene.id)
    resolved(scene, "none")
    assert perform_now(scene.id).state == "succeeded"
    assert scene.row().attempt == 2


def test_a_probe_that_never_finds_it_lets_it_go_again_only_so_often():
    scene = make_scene("probed", ["nothing"] * 9)
    for _ in range(9):
        if perform_now(scene.id).state != "uncertain":
            break
        put_back(scene.id, 100)
        reconcile.probe_now(scene.id)
    assert (scene.row().state, scene.row().error_class) == ("blocked", "attempts_spent")
    assert len(scene.outside.calls) == 4


def test_a_run_that_ends_gives_its_calls_an_outcome_without_another_attempt():
    scene, _ = died_after_the_effect("opaque")
    asyncio.run(give_up(scene.id))
    assert scene.row().state == "uncertain"
    assert scene.outside.calls == []


def test_a_call_whose_run_is_to_stop_does_not_go_again():
    from django.db.models.functions import Now

    from runs.models import Run

    scene = make_scene("opaque")
    dispatched(scene.id)
    Run.objects.filter(id=scene.run.id).update(state="cancelling", cancel_requested_at=Now())
    assert perform_now(scene.id).state == "dispatched"
    assert scene.outside.calls == []


def test_the_dead_workers_kept_outcome_is_settled_by_the_next_delivery():
    scene, given = died_after_the_effect("opaque")
    outcomes._keep(given, outcomes.Outcome(result=ANSWER))
    assert perform_now(scene.id).state == "succeeded"
    assert result_of(scene.row())["text"] == "paid"
    assert outcomes.kept(given) is None


def test_a_refusal_is_kept_as_well():
    scene, given = died_after_the_effect("opaque")
    outcomes._keep(given, outcomes.Outcome(error_class=NotSent.__name__, message="no route"))
    assert perform_now(scene.id).state == "failed"


def kept_under_a_lost_key(given, monkeypatch) -> None:
    with monkeypatch.context() as then:
        then.setattr(objects, "keys", lambda: keyring.Keyring({"lost": b"1" * 32}))
        outcomes._keep(given, outcomes.Outcome(result=ANSWER))


@pytest.mark.parametrize("end", [perform_now, lambda operation_id: asyncio.run(give_up(operation_id))])
def test_an_outcome_kept_under_a_lost_key_makes_it_uncertain_and_is_left_where_it_is(end, monkeypatch):
    scene, given = died_after_the_effect("keyed")
    kept_under_a_lost_key(given, monkeypatch)
    end(scene.id)
    assert (scene.row().state, len(scene.outside.effects), scene.outside.calls) == ("uncertain", 1, [])
    with pytest.raises(keyring.KeyUnavailable, match="'lost'"):
        outcomes.kept(given)


def test_a_kept_outcome_whose_bytes_were_changed_is_none(monkeypatch):
    _, given = died_after_the_effect("opaque")
    kept_under_a_lost_key(given, monkeypatch)
    monkeypatch.setattr(objects, "keys", lambda: keyring.Keyring({"lost": b"2" * 32}))
    assert outcomes.kept(given) is None

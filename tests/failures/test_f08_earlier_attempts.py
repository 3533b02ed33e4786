"""F8. That the last attempt had no effect says nothing of an earlier one whose reply was lost."""

from __future__ import annotations

import pytest
from django.db import IntegrityError, transaction

from runs.boundary import operations
from runs.boundary.contracts import EffectResult, NotSent, Refused
from runs.models import Operation
from tests.boundary_scene import committed, dispatched, make_scene, perform_now, quiet, told

pytestmark = pytest.mark.usefixtures("committed")
__all__ = ["committed"]


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr("runs.boundary.perform.AGAIN_PAUSES_SECONDS", (0.0,))


def raising(error):
    def step(_dispatch):
        raise error

    return step


def an_error(dispatch):
    return EffectResult(text="409 conflict", is_error=True)


@pytest.mark.parametrize("error", [NotSent("the proxy is gone"), Refused("503")])
def test_a_repeat_that_was_not_done_leaves_the_first_attempt_unclear_and_a_new_call_held_back(error):
    scene = make_scene("keyed", ["effect", raising(error)])
    assert perform_now(scene.id).state == "uncertain"
    assert told(scene.id) == ["tool.started", "tool.failed uncertain", "tool.started", "tool.failed uncertain"]
    assert "earlier attempt" in scene.row().error_message
    assert perform_now(scene.another().id).state == "blocked"
    assert len(scene.outside.effects) == 1


def test_a_repeat_that_is_answered_with_an_error_leaves_the_first_attempt_unclear():
    scene = make_scene("keyed")
    dispatched(scene.id)
    given = operations.again(operations.interrupted(scene.id), quiet, "uncertain")
    assert operations.settle_answer(given, an_error(given)).state == "uncertain"
    assert operations.settle_answer(given, an_error(given)).state == "uncertain"
    assert told(scene.id)[:4] == ["tool.started", "tool.failed uncertain", "tool.started", "tool.failed uncertain"]


def test_a_repeat_that_is_answered_has_its_effect():
    scene = make_scene("keyed", ["effect", "answer"])
    assert perform_now(scene.id).state == "succeeded"


def test_an_only_attempt_that_was_not_done_has_no_effect():
    scene = make_scene("keyed", [raising(NotSent("no route"))])
    assert perform_now(scene.id).state == "failed"


def test_attempts_that_were_all_told_without_an_effect_leave_none():
    scene = make_scene("opaque", [raising(NotSent("no route"))])
    dispatched(scene.id)
    assert perform_now(scene.id).state == "failed"  # its first attempt provably never left


def test_a_late_word_of_the_last_attempt_does_not_speak_for_the_first():
    scene = make_scene("keyed")
    dispatched(scene.id)
    given = operations.again(operations.interrupted(scene.id), quiet, "uncertain")
    operations.settle_uncertain(operations.Unclear(given, "TimeoutError", "no answer"))
    assert operations.settle_not_done(given, "NotSent", "it never left").state == "uncertain"


def test_the_database_keeps_the_doubt():
    scene = make_scene("keyed")
    dispatched(scene.id)
    operations.again(operations.interrupted(scene.id), quiet, "uncertain")
    for change in (
        {"earlier_unclear": False},
        {"state": "failed", "error_class": "x", "settled_at": "2026-01-01T00:00Z"},
    ):
        with pytest.raises(IntegrityError), transaction.atomic():
            Operation.objects.filter(id=scene.id).update(**change)

"""F1. A model's failure is tried again where that can help, bounded and as a durable timer; then it has a name."""

from __future__ import annotations

import time

import pytest

from outbox.models import Event
from runs.boundary.models.errors import ModelError
from runs.loop import agent_loop, turns
from runs.loop.contracts import ThinkInput
from runs.models import Operation
from tests.kernel import begin, ended, make_project, said, says, told

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("temporal_server")]

SECRET = "the canary in the prompt"


@pytest.fixture
def project():
    return make_project()


def fails(code: str, **more) -> dict:
    return {"error": {"code": code, "message": "as the provider said", **more}}


# These two do a worker's work by hand: they stand before the class, whose worker would take their runs.


def test_a_redelivery_after_the_failure_was_written_says_the_same_again(project):
    """The worker dies between the commit and Temporal's acknowledgement: nothing is asked, the pause is not lost."""
    run = begin([says("done")], project=project)
    asked = ThinkInput(run_id=run.id, turn=1, attempt=1, tools=True, calls_allowed=1)
    question = turns.open_turn(asked, lambda *_: None)
    error = ModelError("server_error", "x-should-retry says no", retryable=False, retry_after_seconds=7.0)
    first = turns.fail_turn(asked, question, error)
    assert (first.retryable, first.retry_after_seconds) == (False, 7.0)
    assert turns.open_turn(asked, lambda *_: None) == first


def test_a_call_that_was_interrupted_before_does_not_use_up_the_attempts(project):
    """Deliveries count the row's attempts up; the loop's own attempts are counted apart."""
    run = begin([says("done")], project=project)
    asked = ThinkInput(run_id=run.id, turn=1, attempt=1, tools=True, calls_allowed=1)
    turns.open_turn(asked, lambda *_: None)
    question = turns.open_turn(asked, lambda *_: None)
    assert question.given.attempt == 2
    turns.fail_turn(asked, question, ModelError("overloaded", "busy"))
    again = turns.open_turn(asked.model_copy(update={"attempt": 2}), lambda *_: None)
    assert again.given.attempt == 3


@pytest.mark.usefixtures("carrier")
class TestWithAWorker:
    def test_a_failure_that_passes_is_asked_again_under_the_same_operation(self, project):
        run = ended(begin([says("done") | fails("overloaded", attempts=2)], project=project, text=SECRET))
        assert (run.state, said(run)) == ("completed", "done")
        assert Operation.objects.get(run=run).attempt == 3
        assert told(run).count("model.failed") == 2
        envelopes = list(Event.objects.filter(run_id=run.id).values_list("envelope", flat=True))
        assert any('"provider":"scripted"' in text and '"error_class":"overloaded"' in text for text in envelopes)
        assert not any(SECRET in text for text in envelopes)

    def test_the_providers_retry_after_is_waited_for(self, project):
        began = time.monotonic()
        script = [says("done") | fails("rate_limited", attempts=1, retry_after=3)]
        assert ended(begin(script, project=project)).state == "completed"
        assert time.monotonic() - began >= 3

    def test_a_failure_that_does_not_pass_loses_turns_and_then_ends_the_run_with_its_name(self, project, monkeypatch):
        monkeypatch.setattr(agent_loop, "BACKOFF_FIRST_SECONDS", 0.01)
        run = ended(begin([fails("server_error")], project=project))
        assert (run.state, run.failure_code) == ("failed", "model_server_error")
        calls = list(Operation.objects.filter(run=run).values_list("attempt", flat=True))
        assert calls == [agent_loop.MODEL_ATTEMPTS_MAX] * agent_loop.TURNS_LOST_MAX

    @pytest.mark.parametrize("code", ["authentication", "quota_exceeded", "context_exceeded", "rejected", "not_found"])
    def test_a_failure_that_cannot_pass_is_asked_once(self, project, code):
        run = ended(begin([fails(code)], project=project))
        assert (run.state, run.failure_code) == ("failed", f"model_{code}")
        operation = Operation.objects.get(run=run)
        assert (operation.attempt, operation.error_message) == (1, "as the provider said")

    @pytest.mark.parametrize("reason", ["content_filter", "refusal"])
    def test_a_refusal_ends_the_run_with_its_name(self, project, reason):
        run = ended(begin([says("no") | {"finish_reason": reason}], project=project))
        assert (run.state, run.failure_code) == ("failed", f"model_{reason}")

"""What is said to a running run is read by the model in its next turn: once, in order, whatever is delivered twice."""

from __future__ import annotations

from datetime import timedelta

import pytest

from kernel_project.primitives.clock import now
from kernel_project.primitives.errors import Conflict
from outbox.contracts import Actor
from outbox.models import Event
from runs.boundary.models.contracts import ModelAnswer
from runs.loop import endings, messages, turns
from runs.loop.contracts import UNHEARD, FinishInput, ThinkInput
from runs.models import Operation, Run, RunMessage
from tests.api_client import api_for, is_problem
from tests.boundary_scene import at_once
from tests.kernel import Carrier, begin, call, calls, ended, make_project, make_tool, read, said, says, told, waits
from tests.waiting import until_sync

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("temporal_server")]

ANN = Actor(id="ann", type="human")
SECRET = "the canary in the message"


@pytest.fixture
def project():
    project = make_project()
    make_tool(project, "gated", lambda dispatch, text: text)
    return project


@pytest.fixture
def run(project):
    return begin([says("done")], project=project)


def say(run, text, key=""):
    return messages.say(run.id, run.project_id, text, ANN, key).message


def ask(run, turn=1, attempt=1):
    asked = ThinkInput(run_id=run.id, turn=turn, attempt=attempt, tools=True, calls_allowed=9)
    return asked, turns.open_turn(asked, lambda *_: None)


def heard(question) -> list[str]:
    return [message.text for message in question.request.messages]


def answer(asked, question, text="done"):
    return turns.close_turn(asked, question, ModelAnswer(text=text, finish_reason="stop", provider="scripted"))


def completes(run) -> str:
    return endings.finish(FinishInput(run_id=run.id, outcome="completed"))


# These start no worker: they stand before the class, whose worker would take their runs.


def test_messages_are_read_once_in_order_and_a_redelivery_reads_the_same(run):
    say(run, "first")
    say(run, "second")
    asked, question = ask(run)
    assert heard(question) == ["go", "first", "second"]
    say(run, "third")
    asked, question = ask(run)
    assert heard(question) == ["go", "first", "second"], "the call was let go without it"
    answer(asked, question, "so far")
    assert completes(run) == UNHEARD
    asked, question = ask(run, turn=2)
    assert heard(question) == ["go", "first", "second", "so far", "third"]
    answer(asked, question)
    assert completes(run) == "completed"
    assert list(RunMessage.objects.order_by("number").values_list("turn", flat=True)) == [1, 1, 2]
    assert told(run).count("run.message") == 3


def test_what_a_failed_call_had_read_is_in_the_next_question_too(run):
    say(run, "first")
    asked, question = ask(run)
    turns.stop_turn(asked, question)
    assert heard(ask(run, turn=2)[1]) == ["go", "first"]


def test_the_description_of_a_question_covers_what_was_said(run):
    other = begin([says("done")], project=run.project)
    say(run, "first")
    for one in (run, other):
        ask(one)
    digests = list(Operation.objects.filter(run__in=[run, other]).values_list("arguments_digest", flat=True))
    assert len(set(digests)) == 2


def test_twenty_at_once_get_twenty_numbers_and_one_key_gets_one_message(run):
    at_once(*[lambda n=n: say(run, f"text {n}") for n in range(5)])
    same = at_once(*[lambda: say(run, "the same", "k")] * 5)
    assert len({message.number for message in same}) == 1
    assert sorted(RunMessage.objects.values_list("number", flat=True)) == [1, 2, 3, 4, 5, 6]
    assert read(run).messages == 6


def test_the_number_of_messages_is_bounded(run, monkeypatch):
    monkeypatch.setattr(messages, "UNSEEN_MAX", 2)
    for text in "ab":
        say(run, text)
    with pytest.raises(Conflict) as error:
        say(run, "c")
    assert error.value.error_code == "too_many_messages"


def test_no_message_is_taken_that_no_turn_would_read(project):
    def refusal(run):
        with pytest.raises(Conflict) as error:
            say(run, "and the drafts?")
        return error.value.error_code

    last = begin([says("done")], project=project, limits={"turns_max": 1})
    ask(last)
    assert refusal(last) == "last_turn"
    late = begin([says("done")], project=project, limits={"wall_seconds_max": 60})
    ask(late)
    Run.objects.filter(id=late.id).update(created_at=now() - timedelta(seconds=61))
    assert refusal(late) == "last_turn"
    limited = begin([says("done")], project=project)
    turns.open_turn(
        ThinkInput(run_id=limited.id, turn=1, attempt=1, tools=False, calls_allowed=0, limit="tokens"), print
    )
    assert refusal(limited) == "last_turn"


def test_the_door(project, run):
    api, path = api_for(project), f"/runs/{run.id}/messages"
    first = api.post(path, {"text": SECRET}, Idempotency_Key="k")
    assert (first.status_code, first.data["number"], "text" in first.data) == (202, 1, False)
    again = api.post(path, {"text": SECRET}, Idempotency_Key="k")
    assert (again.data, again["Idempotency-Replayed"]) == (first.data, "true")
    assert is_problem(api.post(path, {"text": "other"}, Idempotency_Key="k"), 422, "idempotency_key_reused")
    stranger = api_for(make_project())
    assert is_problem(stranger.post(path, {"text": "x"}, Idempotency_Key="k"), 404, "not_found")
    colleague = api_for(project).post(path, {"text": "other"}, Idempotency_Key="k")
    assert colleague.data["number"] == 2, "a key belongs to its caller"
    for wrong in ({}, {"text": ""}, {"text": "  "}, {"text": "a\x00"}, {"text": 7}, {"text": "ü" * 40_000}):
        assert api.post(path, wrong).status_code == 422, wrong
    listed = api.get(path).data["items"]
    assert [(item["number"], item["turn"]) for item in listed] == [(1, None), (2, None)]
    envelopes = Event.objects.filter(run_id=run.id).values_list("envelope", flat=True)
    assert not any(SECRET in text for text in envelopes)
    Run.objects.filter(id=run.id).update(state="failed", failure_code="x", ended_at=run.created_at)
    assert is_problem(api.post(path, {"text": "too late"}), 409, "run_ended")
    assert api.post(path, {"text": SECRET}, Idempotency_Key="k").data == first.data, "a repeat finds it all the same"


class TestWithAWorker:
    @pytest.fixture(autouse=True)
    def work(self):
        with Carrier():
            yield

    def test_a_message_during_the_last_answer_gets_a_turn_of_its_own(self, project):
        script = [says("first") | {"delay_seconds": 2}, says("second") | {"expect": "and the drafts?"}]
        run = begin(script, project=project)
        until_sync(lambda: Operation.objects.filter(run=run).exists())
        say(run, "and the drafts?")
        run = ended(run)
        assert (run.state, said(run), run.turn) == ("completed", "second", 2)
        assert told(run).count("run.completed") == 1

    def test_a_message_that_no_turn_is_left_for_leaves_the_answer_as_it_is(self, project):
        """The first answer uses up the tokens; the message came while it was being given."""
        used = {"usage": {"input_tokens": 9_000, "output_tokens": 900}}
        run = begin([says("first") | {"delay_seconds": 2} | used], project=project, limits={"tokens_max": 10_000})
        until_sync(lambda: Operation.objects.filter(run=run).exists())
        say(run, "and the drafts?")
        run = ended(run)
        assert (run.state, said(run), "was not read" in run.failure_message) == ("completed", "first", True)
        assert RunMessage.objects.get(run=run).turn is None

    def test_a_message_does_not_disturb_what_waits(self, project):
        run = begin([calls(call("gated", text="a"))], ["gated"], project=project)
        waits(run, "awaiting_approval")
        say(run, "hurry")
        endings.request_cancel(run.id, project.slug, by=ANN)
        assert ended(run).state == "cancelled"

"""A run stops at its limits on tokens, cost and time: one last call without tools, a named end, an event."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

import pytest
from django.db import transaction

from kernel_project.primitives.errors import Invalid
from outbox.contracts import Actor
from outbox.models import Event
from runs import registry
from runs.boundary import artifacts, operations
from runs.boundary.models.contracts import ModelAnswer, Usage
from runs.boundary.models.errors import ModelError
from runs.contracts import AgentDefinition
from runs.loop import endings, transcripts, turns
from runs.loop.contracts import ThinkInput
from runs.models import ModelPrice, Operation, Run
from tests.kernel import (
    Carrier,
    Ledger,
    begin,
    begin_again,
    call,
    calls,
    ended,
    make_agent,
    make_project,
    make_tool,
    said,
    says,
    states,
    told,
    waits,
    writes_to,
)  # fmt: skip

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("temporal_server")]

USED = {"usage": {"input_tokens": 900, "output_tokens": 100}}


@pytest.fixture
def ledger(tmp_path):
    return Ledger(tmp_path / "ledger")


@pytest.fixture
def project(ledger):
    project = make_project()
    make_tool(project, "note", writes_to(ledger), idempotent_for_seconds=3600)
    make_tool(project, "gated", writes_to(ledger))
    return project


def charged(run) -> list[int]:
    return list(Operation.objects.filter(run=run, position=0).order_by("turn").values_list("tokens_charged", flat=True))


def looping(text="a") -> list[dict]:
    return [{"repeat": 20, **calls(call("note", text="{turn}")), **USED, "text": text}]


# These do a worker's work by hand: they stand before the class, whose worker would take their runs.


def ask(run, turn=1, attempt=1, limit=""):
    asked = ThinkInput(run_id=run.id, turn=turn, attempt=attempt, tools=not limit, calls_allowed=9, limit=limit)
    return asked, turns.open_turn(asked, lambda *_: None)


def answer(asked, question, **usage):
    given = ModelAnswer(text="done", finish_reason="stop", provider="scripted", usage=Usage(**usage))
    return turns.close_turn(asked, question, given)


def test_a_call_is_charged_when_it_leaves_and_corrected_by_what_the_provider_says(project):
    run = begin([says("done")], project=project)
    asked, question = ask(run)
    [reserved] = charged(run)
    assert reserved > 8_192
    answer(asked, question, input_tokens=900, output_tokens=100)
    assert charged(run) == [1_000]


def test_a_call_whose_worker_died_stays_charged_and_the_next_delivery_is_charged_too(project):
    run = begin([says("done")], project=project)
    ask(run)
    [reserved] = charged(run)
    asked, question = ask(run)
    assert charged(run) == [2 * reserved]
    answer(asked, question, input_tokens=900, output_tokens=100)
    assert charged(run) == [reserved + 1_000]


def test_a_delivery_that_is_overtaken_or_called_off_before_it_asks_charges_nothing(project, monkeypatch):
    run, other = begin([says("done")], project=project), begin([says("done")], project=project)
    asked, question = ask(run)
    plain = operations.dispatch

    def overtaken(*given, **more):
        answer(asked, question, input_tokens=900, output_tokens=100)
        return plain(*given, **more)

    monkeypatch.setattr(operations, "dispatch", overtaken)
    assert ask(run)[1].kind == "answer"
    assert charged(run) == [1_000]
    monkeypatch.setattr(operations, "dispatch", plain)
    asked, question = ask(other)
    turns.fail_turn(asked, question, ModelError("overloaded", "busy", retryable=True))
    monkeypatch.setattr(operations, "dispatch", lambda *given, **more: stop(other) or plain(*given, **more))
    assert ask(other, attempt=2)[1].kind == "stopped"
    assert charged(other) == [0]


def stop(run) -> None:
    endings.request_cancel(run.id, run.project_id, Actor(id="ann", type="human"))


@pytest.mark.parametrize(("acted", "left"), [(False, 0), (True, 1)])
def test_a_failed_call_is_charged_only_where_the_provider_may_have_done_the_work(project, acted, left):
    run = begin([says("done")], project=project)
    asked, question = ask(run)
    [reserved] = charged(run)
    turns.fail_turn(asked, question, ModelError("overloaded", "busy", may_have_acted=acted))
    assert charged(run) == [left * reserved]


def test_another_delivery_that_does_not_fit_is_not_made_and_the_interrupted_call_gets_its_end(project):
    run = begin([says("done")], project=project, limits={"tokens_max": 10_000})
    ask(run)
    thought = ask(run)[1]
    assert (thought.kind, thought.code, thought.begun) == ("limit", "tokens", True)
    operation = Operation.objects.get(run=run)
    assert (operation.state, operation.error_class, operation.attempt) == ("failed", "interrupted", 1)


def test_a_cost_limit_whose_price_is_gone_ends_the_run_by_name(project):
    run = begin([says("done")], project=project, limits={"cost_max": "1.5"})
    thought = ask(run)[1]
    assert (thought.kind, thought.code, thought.retryable) == ("failed", "price_unknown", False)


def test_limits_that_cannot_be_held_are_refused_at_the_registration(project):
    def refused(**more) -> str:
        with pytest.raises(Invalid) as error, transaction.atomic():
            registry.save_version(project, "a", AgentDefinition(model="openai:gpt-5", **more), "test")
        return error.value.message

    assert "the project knows no price of openai:gpt-5" in refused(limits={"cost_max": "2"})
    assert "raise limits.tokens_max" in refused(limits={"tokens_max": 8_192})
    ModelPrice.objects.create(project=project, model="openai:gpt-5", input=1, output=1000)
    assert "raise limits.cost_max" in refused(limits={"cost_max": "2"})
    definition = AgentDefinition(model="openai:gpt-5", limits={"cost_max": "9.50", "wall_seconds_max": 60})
    with transaction.atomic():
        version, _ = registry.save_version(project, "a", definition, "test")
    assert AgentDefinition.model_validate(version.definition) == definition
    assert "tokens_max" not in version.definition["limits"], "an older kernel refuses names that it does not know"


class TestWithAWorker:
    @pytest.fixture(autouse=True)
    def work(self):
        with Carrier():
            yield

    def test_tokens(self, project, ledger):
        run = ended(begin(looping("so far"), ["note"], project=project, limits={"tokens_max": 11_000}))
        assert (run.state, run.failure_code) == ("failed", "limit_tokens")
        assert charged(run) == [1_000] * 4, "with 8192 tokens reserved for an answer, a fourth whole call does not fit"
        assert said(run) == "so far"
        assert len(ledger.lines()) == 3
        assert told(run).count("policy.limit") == 1
        assert Event.objects.get(run_id=run.id, type="policy.limit").envelope.count('"reason":"tokens"') == 1

    def test_cost_and_no_last_call_where_even_that_does_not_fit(self, project, ledger):
        script = [calls(call("note", text="a")) | {"usage": {"input_tokens": 0, "output_tokens": 8_192}}]
        version = make_agent(project, script, ["note"], limits={"cost_max": "0.82"})
        ModelPrice.objects.create(project=project, model=version.definition["model"], input=0, output=100)
        run = ended(begin_again(version))
        assert (run.failure_code, len(ledger.lines())) == ("limit_cost", 1)
        assert Operation.objects.get(run=run, position=0).cost_charged == Decimal("0.8192")
        assert told(run)[-2:] == ["policy.limit", "run.failed"]

    def test_time_is_over_while_a_person_is_waited_for(self, project, ledger):
        script = [calls(call("gated", text="a"), call("note", text="b")), says("gave up")]
        run = begin(script, ["gated", "note"], project=project, limits={"wall_seconds_max": 3})
        waits(run, "awaiting_approval", "succeeded")
        run = ended(run)
        assert (run.failure_code, said(run)) == ("limit_wall_time", "gave up")
        assert states(run) == [("gated", "withdrawn"), ("note", "succeeded")]
        assert run.ended_at - run.created_at >= timedelta(seconds=3)

    def test_time_is_over_while_the_provider_is_waited_for(self, project):
        script = [
            {"error": {"code": "rate_limited", "message": "later", "retry_after": 3000, "attempts": 1}, "text": "x"}
        ]
        run = ended(begin(script, project=project, limits={"wall_seconds_max": 2}), 20)
        assert run.failure_code == "limit_wall_time"
        assert Run.objects.get(id=run.id).turn == 2

    def test_a_conversation_that_grows_too_long_is_told_shorter_and_says_so(self, project):
        text = "y" * 3_000
        run = ended(
            begin(
                [{"repeat": 6, **calls(call("note", text=text))}, says("done")],
                ["note"],
                project=project,
                context_tokens_max=4_000,
            )
        )
        assert run.state == "completed"
        events = Event.objects.filter(run_id=run.id, type="context.compacted").order_by("sequence")
        assert 0 < events.count() < 6
        assert '"short_before_turn":' in events[0].envelope
        rows = transcripts.rows(run, 6)
        told = transcripts.told(run, rows, bytes_max=12_000)
        assert told.before > 1
        assert any(
            f"left out, for the conversation grew long; the whole is kept as {artifacts.ref(rows[1].arguments_digest)}"
            in str(message)
            for message in told.messages
        )
        assert artifacts.read(run.id, rows[1].arguments_digest)

"""F2. A tool call fails or gets no answer: one attempt, a classified outcome, no repeat before it is reconciled."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from outbox.contracts import Actor
from outbox.models import Event
from runs.boundary import reconcile
from runs.boundary.contracts import EffectResult, NotSent, Refused
from runs.boundary.effects import python
from tests.boundary_scene import committed, make_scene, perform_now, result_of, told

pytestmark = pytest.mark.usefixtures("committed")
__all__ = ["committed"]

PERSON = Actor(id="olga", type="human")


def raises(error: BaseException):
    def step(_):
        raise error

    return step


@pytest.mark.parametrize("error", [NotSent("no such host"), Refused("rate limited")])
def test_a_call_that_never_took_effect_has_failed_without_an_effect(error):
    scene = make_scene("opaque", [raises(error)])
    assert perform_now(scene.id).state == "failed"
    assert (scene.row().error_class, scene.row().error_message) == (type(error).__name__, str(error))
    assert told(scene.id) == ["tool.started", "tool.failed none"]


@pytest.mark.parametrize("error", [ConnectionResetError("reset"), ValueError("a bug"), TimeoutError()])
def test_any_other_failure_of_a_write_is_uncertain(error):
    scene = make_scene("opaque", [raises(error)])
    assert perform_now(scene.id).state == "uncertain"
    assert told(scene.id) == ["tool.started", "tool.failed uncertain"]
    assert scene.outside.calls == [1]


def test_a_write_without_an_answer_is_uncertain_when_its_time_is_over(monkeypatch):
    monkeypatch.setattr("runs.boundary.perform.TIMEOUT_GRACE_SECONDS", 0.1)
    scene = make_scene("opaque", ["hang"], timeout_seconds=1)
    assert perform_now(scene.id).state == "uncertain"
    assert scene.row().error_class == "TimeoutError"


def test_a_cancellation_that_nobody_asked_for_is_a_broken_line():
    """A dying MCP server raises a bare CancelledError, which looks like the engine's."""
    scene = make_scene("opaque", [raises(asyncio.CancelledError())])
    assert perform_now(scene.id).state == "uncertain"
    assert scene.row().error_class == "AdapterCancelled"


def test_a_function_that_ends_the_process_does_not_end_the_worker():
    for error in (SystemExit(1), KeyboardInterrupt()):
        scene = make_scene("opaque", [raises(error)])
        assert perform_now(scene.id).state == "uncertain"
        assert scene.row().error_class == "ToolExited"


def blocking(raised):
    def function(dispatch, **_):
        if raised is not None:
            raise raised
        return "done"

    return function


@pytest.mark.parametrize("raised", [SystemExit(1), StopIteration(), KeyboardInterrupt()])
def test_neither_does_one_that_blocks(raised, monkeypatch):
    scene = make_scene("opaque")
    monkeypatch.setitem(python._registered, scene.tool.remote_name, _replaced(scene, blocking(raised)))
    assert perform_now(scene.id).state == "uncertain"


def _replaced(scene, function):
    return replace(python._registered[scene.tool.remote_name], function=function)


def test_a_function_that_does_not_take_the_arguments_was_not_called(monkeypatch):
    scene = make_scene("opaque")
    monkeypatch.setitem(python._registered, scene.tool.remote_name, _replaced(scene, lambda dispatch: "done"))
    assert perform_now(scene.id).state == "failed"
    assert scene.row().error_class == "NotSent"


def test_an_argument_may_be_named_like_anything(monkeypatch):
    scene = make_scene("opaque")
    operation = scene.another(function="f", tool="t", call="c", name="n")
    assert perform_now(operation.id).state == "succeeded"


@pytest.mark.parametrize(
    ("kind", "declared", "state", "said"),
    [
        ("read", None, "tool_error", "tool.failed none"),
        ("read", "uncertain", "tool_error", "tool.failed none"),
        ("opaque", None, "tool_error", "tool.failed none"),
        ("opaque", "occurred", "tool_error", "tool.failed occurred"),
        ("opaque", "uncertain", "uncertain", "tool.failed uncertain"),
    ],
)
def test_an_error_answer_says_what_its_tool_is_declared_to_mean_by_it(kind, declared, state, said):
    """docs/decisions/0003."""
    configuration = {"error_effect": declared} if declared else {}
    answer = EffectResult(text="insufficient funds", is_error=True)
    scene = make_scene(kind, [lambda _: answer], configuration=configuration)
    assert perform_now(scene.id).state == state
    assert told(scene.id)[-1] == said
    assert "insufficient funds" in (scene.row().error_message or result_of(scene.row())["text"])


def test_an_unclear_error_answer_of_a_probed_write_is_looked_up():
    scene = make_scene("probed", configuration={"error_effect": "uncertain"})

    def acts_and_complains(dispatch):
        scene.outside.effects.append(dispatch.idempotency_key)
        return EffectResult(text="500", is_error=True)

    scene.outside.plan = [acts_and_complains]
    assert perform_now(scene.id).state == "succeeded"
    assert result_of(scene.row())["text"] == "found"


def test_no_event_holds_arguments_results_or_error_texts():
    scene = make_scene("opaque", [raises(ValueError("secret-canary"))])
    operation = scene.another(text="secret-canary-2")
    perform_now(scene.id)
    perform_now(operation.id)
    envelopes = Event.objects.filter(run_id__in=[scene.run.id, operation.run_id]).values_list("envelope", flat=True)
    assert not [text for text in envelopes if "secret-canary" in text]


def test_a_repeat_by_the_model_is_refused_until_the_first_call_is_reconciled():
    scene = make_scene("opaque", ["effect"])
    perform_now(scene.id)
    second = scene.another(scene.run)
    assert perform_now(second.id).state == "blocked"
    reconcile.resolve(scene.id, project=scene.project.slug, verdict="occurred", by=PERSON, note="seen in the books")
    third = scene.another(scene.run)
    assert perform_now(third.id).state == "succeeded"

"""Calls that do not leave: unknown, unfit, forbidden, switched off, or the same call as one whose fate is not known."""

from __future__ import annotations

import asyncio
import threading

import pytest
from django.db import IntegrityError, transaction

from runs.boundary import operations
from runs.boundary.intents import Wanted
from runs.models import Operation, Tool
from tests.boundary_scene import (
    at_once,
    committed,
    dispatched,
    make_run,
    make_scene,
    perform_now,
    propose,
    quiet,
    rule,
    told,
)

pytestmark = pytest.mark.usefixtures("committed")
__all__ = ["committed"]


def test_an_unknown_tool_is_blocked_and_told():
    scene = make_scene()
    operation = propose(scene.run, Wanted("no-such-tool\x00", {}), turn=2)[0]
    assert (operation.state, operation.error_class) == ("blocked", "unknown_tool")
    assert told(operation.id) == ["tool.blocked"]
    assert perform_now(operation.id).state == "blocked"


@pytest.mark.parametrize(
    "arguments", [{"text": 1}, {}, {"text": "\ud800"}, {"text": float("nan")}, {"text": "x", "more": 1}]
)
def test_arguments_that_do_not_fit_are_blocked(arguments):
    schema = {
        "type": "object",
        "properties": {"text": {"type": ["string", "number"]}},
        "required": ["text"],
        "additionalProperties": False,
    }
    if arguments == {"text": 1}:
        schema["properties"]["text"] = {"type": "string"}
    scene = make_scene(input_schema=schema)
    operation = scene.another(scene.run, **arguments) if arguments else propose(
        scene.run, Wanted(scene.tool.exposed_name, {}), turn=2
    )[0]  # fmt: skip
    assert (operation.state, operation.error_class) == ("blocked", "invalid_arguments")


def test_a_twin_of_an_uncertain_call_is_refused_also_in_another_run():
    scene = make_scene("opaque", ["effect"])
    perform_now(scene.id)
    twin = scene.another()
    assert perform_now(twin.id).state == "blocked"
    row = Operation.objects.get(id=twin.id)
    assert row.error_class == "unresolved_twin"
    assert str(scene.id) in row.error_message
    assert len(scene.outside.effects) == 1


def test_another_project_is_not_concerned():
    scene, other = make_scene("opaque", ["effect"]), make_scene("opaque")
    perform_now(scene.id)
    assert perform_now(other.id).state == "succeeded"


def test_the_key_that_a_tool_has_written_into_its_arguments_does_not_hide_a_twin():
    scene = make_scene("opaque", ["effect"], key_argument="text")
    perform_now(scene.id)
    twin = scene.another()
    assert twin.arguments_digest != scene.row().arguments_digest
    assert perform_now(twin.id).state == "blocked"


def test_reads_are_never_held_back():
    scene = make_scene("read")
    dispatched(scene.id)
    assert perform_now(scene.another().id).state == "succeeded"


def test_a_twin_of_a_call_under_way_waits_for_its_outcome(monkeypatch):
    monkeypatch.setattr("runs.boundary.perform.HELD_POLL_SECONDS", 0.05)
    scene = make_scene("opaque")
    given = dispatched(scene.id)
    twin = scene.another()
    threading.Timer(0.5, lambda: at_once(lambda: operations.settle_failure(given, "NotSent", "no"))).start()
    assert perform_now(twin.id).state == "succeeded"


def test_a_twin_of_a_call_that_does_not_end_is_refused(monkeypatch):
    monkeypatch.setattr("runs.boundary.perform.HELD_SECONDS_MAX", 0.2)
    scene = make_scene("opaque")
    dispatched(scene.id)
    assert perform_now(scene.another().id).state == "blocked"


def test_of_two_dispatches_of_the_same_call_at_once_one_goes():
    for _ in range(5):
        scene = make_scene("opaque")
        twin = scene.another()
        steps = at_once(
            lambda s=scene: operations.dispatch(s.id, quiet, patient=True),
            lambda t=twin: operations.dispatch(t.id, quiet, patient=True),
        )
        assert sorted(type(step).__name__ for step in steps) == ["Dispatch", "Held"]


def test_a_dispatch_that_races_with_a_twin_becoming_uncertain_never_leaves():
    for _ in range(5):
        scene = make_scene("opaque")
        given = dispatched(scene.id)
        twin = scene.another()
        doubt = operations.Unclear(given, "TimeoutError", "")
        _, step = at_once(
            lambda u=doubt: operations.settle_uncertain(u), lambda t=twin: operations.dispatch(t.id, quiet)
        )
        assert step.state == "blocked"


def test_the_database_itself_refuses_two_unclear_twins():
    scene = make_scene("opaque", ["effect"])
    perform_now(scene.id)
    twin = scene.another()
    with pytest.raises(IntegrityError), transaction.atomic():
        Operation.objects.filter(id=twin.id).update(
            state="dispatched", attempt=1, dispatched_at="2026-01-01T00:00Z", first_dispatched_at="2026-01-01T00:00Z",
            deadline_at="2026-01-01T00:00Z",
        )  # fmt: skip


def test_two_equal_writes_of_one_turn_go_one_after_the_other(monkeypatch):
    monkeypatch.setattr("runs.boundary.perform.HELD_POLL_SECONDS", 0.05)
    scene = make_scene("opaque")
    call = Wanted(scene.tool.exposed_name, {"text": "same"})
    one, other = propose(scene.run, call, call, turn=2)

    async def both():
        from tests.boundary_scene import performed

        return await asyncio.gather(performed(one.id), performed(other.id))

    assert [settled.state for settled in asyncio.run(both())] == ["succeeded"] * 2
    assert len(scene.outside.effects) == 2


UNIQUE = {"configuration": {"unique_by": ["order.id"]}}


def order(scene, number, run=None, **more):
    return scene.another(run, order={"id": number}, **more)


@pytest.mark.parametrize("plan", [["answer"], ["effect"], ["nothing"]])
def test_a_second_call_for_the_same_order_is_refused_whatever_became_of_the_first(plan):
    scene = make_scene("opaque", plan, **UNIQUE)
    first = order(scene, 42)
    perform_now(first.id)
    second = order(scene, 42, amount=7)
    assert (second.state, second.error_class, second.twin_id) == ("blocked", "twin", first.id)
    assert str(first.id) in second.error_message
    assert order(scene, 43).state == "proposed"


def test_a_first_call_that_never_left_is_no_twin():
    scene = make_scene("opaque", **UNIQUE)
    rule(scene.project, "deny", name="stop", tool=scene.tool.name)
    assert order(scene, 42).state == "denied"
    rule(scene.project, "allow", name="stop", tool=scene.tool.name)
    assert order(scene, 42).state == "proposed"


def test_two_calls_for_the_same_order_in_one_turn_or_at_once():
    scene = make_scene("opaque", **UNIQUE)
    call = Wanted(scene.tool.exposed_name, {"order": {"id": 1}})
    one, other = propose(scene.run, call, call, turn=2)
    assert (one.state, other.state, other.twin_id) == ("proposed", "blocked", one.id)
    runs = [make_run(scene.project, [scene.tool.name], scene.run.agent_version) for _ in range(4)]
    made = at_once(*(lambda r=run: order(scene, 2, r) for run in runs))
    assert sorted(operation.state for operation in made) == ["blocked"] * 3 + ["proposed"]


def test_a_twin_may_be_sent_to_a_person_with_a_link_to_the_first():
    from approvals.models import Approval

    scene = make_scene("opaque", configuration={"unique_by": ["order.id"], "on_twin": "approve"})
    first, second = order(scene, 42), order(scene, 42)
    assert second.state == "awaiting_approval"
    assert str(first.id) in Approval.objects.get(operation_id=second.id).binding


def test_a_declaration_that_cannot_be_read_lets_nothing_through():
    scene = make_scene("opaque")
    Tool.objects.filter(id=scene.tool.id).update(configuration={"unique_by": "order"})
    assert scene.another().error_class == "bad_registration"


def test_a_tool_that_was_switched_off_since_is_not_called():
    scene = make_scene("opaque")
    Tool.objects.filter(id=scene.tool.id).update(enabled=False)
    assert perform_now(scene.id).state == "blocked"
    assert scene.row().error_class == "tool_disabled"


def test_a_tool_that_was_registered_anew_since_is_not_called():
    scene = make_scene("opaque")
    Tool.objects.filter(id=scene.tool.id).update(definition_digest="f" * 64)
    assert perform_now(scene.id).state == "blocked"
    assert scene.row().error_class == "definition_changed"


@pytest.mark.parametrize(("answer", "state"), [("deny", "denied"), ("require", "awaiting_approval")])
def test_a_rule_that_was_made_since_is_obeyed(answer, state):
    scene = make_scene("opaque")
    rule(scene.project, answer, tool=scene.tool.name)
    assert perform_now(scene.id).state == state
    assert scene.outside.calls == []

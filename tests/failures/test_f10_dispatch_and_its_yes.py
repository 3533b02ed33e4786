"""F10. Two deliveries of one call: the slower one does not dispatch what the faster one has taken back."""

from __future__ import annotations

import pytest
from django.db import transaction

from approvals import services
from approvals.models import Approval
from outbox.contracts import Actor
from runs.boundary import gate, operations
from runs.boundary.operations import Settled
from runs.loop import endings
from runs.models import Operation, Tool
from tests.boundary_scene import committed, decider, dispatched, make_scene, perform_now, quiet, rule, told
from tests.integration.test_operations_state_machine import put_into

pytestmark = pytest.mark.usefixtures("committed")
__all__ = ["committed"]


def yes(scene):
    waiting = Approval.objects.get(operation_id=scene.id, state="waiting")
    return services.decide(waiting.id, scene.project.slug, decider(), "approve")


@pytest.fixture
def slow(monkeypatch):
    """Lets something happen between the look of one delivery and its dispatch."""

    def between(work):
        check = gate.check

        def slowly(operation, arguments):
            found = check(operation, arguments)
            monkeypatch.setattr(gate, "check", check)
            work()
            return found

        monkeypatch.setattr(gate, "check", slowly)

    return between


def test_a_yes_that_was_voided_meanwhile_lets_nothing_go(slow):
    scene = make_scene("opaque", allow=False)
    yes(scene)

    def asked_anew():
        Tool.objects.filter(id=scene.tool.id).update(definition_digest="e" * 64)
        assert perform_now(scene.id).state == "awaiting_approval"

    slow(asked_anew)
    step = operations.dispatch(scene.id, quiet)
    assert step == Settled(scene.id, "awaiting_approval")
    assert told(scene.id).count("tool.started") == 0
    yes(scene)
    assert perform_now(scene.id).state == "succeeded"


def test_other_arguments_than_those_that_were_looked_at_do_not_go(slow):
    scene = make_scene("opaque")
    slow(lambda: put_into(scene, "proposed", attempt=0, arguments_digest="a" * 64))
    assert operations.dispatch(scene.id, quiet) == Settled(scene.id, "proposed")


def test_a_request_whose_operation_has_moved_on_does_not_hold_up_the_end_of_its_run(caplog):
    scene = make_scene("opaque", allow=False)
    put_into(scene, "dispatched")
    endings.request_cancel(scene.run.id, scene.project.slug, by=Actor(id="ann", type="human"))
    assert Approval.objects.get(operation_id=scene.id).state == "withdrawn"
    assert (scene.row().state, told(scene.id)) == ("dispatched", ["approval.requested", "approval.rejected"])
    assert "does not wait" in caplog.text


CHANGES = {
    "tool_disabled": lambda scene: Tool.objects.filter(id=scene.tool.id).update(enabled=False),
    "denied": lambda scene: rule(scene.project, "deny", tool=scene.tool.name),
    "definition_changed": lambda scene: Tool.objects.filter(id=scene.tool.id).update(definition_digest="e" * 64),
    "approval_mismatch": lambda scene: rule(scene.project, "require", tool=scene.tool.name),
}


@pytest.mark.parametrize("reason", sorted(CHANGES))
@pytest.mark.parametrize(("kind", "state"), [("read", "failed"), ("opaque", "failed"), ("keyed", "uncertain")])
def test_an_attempt_is_not_repeated_when_the_call_may_not_leave_by_now(kind, state, reason):
    scene = make_scene(kind)
    dispatched(scene.id)
    CHANGES[reason](scene)
    assert perform_now(scene.id).state == state
    assert (scene.outside.calls, scene.row().attempt, scene.row().error_class) == ([], 1, reason)
    assert told(scene.id) == ["tool.started", f"tool.failed {'none' if state == 'failed' else 'uncertain'}"]


@pytest.mark.parametrize("change", [{"configuration": {"error_effect": "occurred"}}, {"remote_name": "other"}])
def test_an_approved_attempt_is_not_repeated_as_another_call(change):
    scene = make_scene("opaque", allow=False)
    yes(scene)
    dispatched(scene.id)
    Tool.objects.filter(id=scene.tool.id).update(**change)
    assert perform_now(scene.id).state == "failed"
    assert (scene.outside.calls, scene.row().error_class) == ([], "approval_mismatch")


def test_an_approved_attempt_is_not_repeated_without_its_yes():
    scene = make_scene("opaque", allow=False)
    yes(scene)
    dispatched(scene.id)
    with transaction.atomic():
        services.void(scene.id)
    assert perform_now(scene.id).state == "failed"
    assert scene.outside.calls == []


def test_an_approved_attempt_is_repeated_by_the_same_yes():
    scene = make_scene("opaque", allow=False)
    yes(scene)
    dispatched(scene.id)
    assert perform_now(scene.id).state == "succeeded"
    assert Operation.objects.get(id=scene.id).attempt == 2

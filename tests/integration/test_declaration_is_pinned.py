"""What a tool's registration promised when a call was made decides about it, whatever is registered by then."""

from __future__ import annotations

import pytest
from django.db import IntegrityError, transaction

from runs.boundary import compensation, declared, operations
from runs.boundary.contracts import EffectResult, ProbeVerdict
from runs.models import Kind, Operation, Tool
from tests.boundary_scene import committed, dispatched, make_scene, perform_now, put_back, told

pytestmark = pytest.mark.usefixtures("committed")
__all__ = ["committed"]
ERROR = EffectResult(text="500", is_error=True)


def registered_anew(scene, **values) -> None:
    Tool.objects.filter(id=scene.tool.id).update(**values)


@pytest.mark.parametrize(
    ("was", "is_now", "effect"), [({}, "uncertain", "none"), ({"error_effect": "uncertain"}, "none", "uncertain")]
)
def test_an_error_answer_means_what_it_meant_when_the_call_was_made(was, is_now, effect):
    scene = make_scene("opaque", configuration=was)
    registered_anew(scene, configuration={"error_effect": is_now})
    assert operations.error_effect(dispatched(scene.id), ERROR) == effect


def test_an_error_whose_effect_occurred_can_be_undone_later_too():
    scene = make_scene("opaque", [lambda _: ERROR], configuration={"error_effect": "occurred"})
    perform_now(scene.id)
    registered_anew(scene, configuration={})
    row = Operation.objects.select_related("tool").get(id=scene.id)
    assert compensation.not_undoable(row) == ""
    assert not compensation.provably_nothing(row)


@pytest.mark.parametrize(("was", "is_now"), [(False, True), (True, False)])
def test_a_command_is_as_replay_safe_as_it_was(was, is_now):
    scene = make_scene("opaque")
    registered_anew(scene, kind=Kind.SANDBOX, replay_safe=was)
    operation = scene.another(text="run it")
    registered_anew(scene, replay_safe=is_now)
    assert declared.replay_safe(Operation.objects.select_related("tool").get(id=operation.id)) is was


def test_not_found_counts_as_late_as_it_did():
    scene = make_scene("probed", configuration={"absent_after_seconds": 3600})
    given = dispatched(scene.id)
    operations.mark_sending(given.operation_id, given.attempt)
    registered_anew(scene, configuration={"absent_after_seconds": 0})
    scene.outside.verdict = ProbeVerdict.ABSENT
    put_back(scene.id, 120)
    assert perform_now(scene.id).state == "uncertain"
    assert told(scene.id) == ["tool.started", "tool.failed uncertain"]


def test_what_nobody_can_read_lets_no_absence_count():
    assert declared.absent_after_seconds(Operation(declared={"absent_after_seconds": "soon"})) > 1e9
    assert declared.absent_after_seconds(Operation(declared={"absent_after_seconds": -1})) > 1e9
    assert declared.absent_after_seconds(Operation(declared={"absent_after_seconds": None})) == 60


def test_a_row_of_an_older_version_asks_the_registry():
    tool = Tool(kind=Kind.SANDBOX, replay_safe=True, configuration={"error_effect": "occurred"})
    row = Operation(tool=tool, declared=None)
    assert (declared.replay_safe(row), declared.error_effect(row)) == (True, "occurred")


def test_the_database_lets_nobody_change_it():
    scene = make_scene("opaque")
    with pytest.raises(IntegrityError, match="intent"), transaction.atomic():
        Operation.objects.filter(id=scene.id).update(declared={"replay_safe": True})

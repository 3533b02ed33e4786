"""C34. Parallel requests of one turn: each answer reaches its own call."""

from __future__ import annotations

import pytest

from approvals import services
from approvals.models import Approval
from runs.boundary.intents import Wanted
from tests.boundary_scene import committed, decider, make_scene, perform_now, propose

pytestmark = pytest.mark.usefixtures("committed")
__all__ = ["committed"]


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_one_is_approved_one_rejected_and_one_left_alone(order):
    scene = make_scene("opaque", allow=False)
    calls = [Wanted(scene.tool.exposed_name, {"text": text}, label="same-id") for text in "abc"]
    operations = propose(scene.run, *calls, turn=2)
    for place in order:
        asked = Approval.objects.get(operation_id=operations[place].id)
        services.decide(asked.id, scene.project.slug, decider(), "approve" if place == 1 else "reject")
    states = [perform_now(operation.id).state for operation in operations]
    assert states == ["awaiting_approval", "succeeded", "rejected"]
    assert scene.outside.effects == [str(operations[1].id)]
    assert [perform_now(operation.id).state for operation in operations] == states
    assert len(scene.outside.effects) == 1

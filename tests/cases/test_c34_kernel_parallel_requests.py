"""C34. Parallel requests of one turn: each answer reaches its own call."""

from __future__ import annotations

import pytest

from approvals import services
from approvals.models import Approval
from runs.boundary.intents import Wanted
from tests.boundary_scene import at_once, committed, decider, make_scene, perform_now, propose

pytestmark = pytest.mark.usefixtures("committed")
__all__ = ["committed"]


def test_answers_given_at_the_same_moment_reach_their_own_calls():
    scene = make_scene("opaque", allow=False)
    calls = [Wanted(scene.tool.exposed_name, {"text": f"call {n}"}, label="same-id") for n in range(8)]
    operations = propose(scene.run, *calls, turn=2)
    asked = {one.operation_id: one for one in Approval.objects.filter(run_id=scene.run.id)}
    verdicts = ["approve" if n % 2 else "reject" for n in range(8)]
    at_once(
        *(
            lambda one=one, verdict=verdict: services.decide(
                asked[one.id].id, scene.project.slug, decider(), verdict, f"about {one.position}"
            )
            for one, verdict in zip(operations, verdicts, strict=True)
        )
    )
    states = [perform_now(one.id).state for one in reversed(operations)][::-1]
    assert states == ["succeeded" if verdict == "approve" else "rejected" for verdict in verdicts]
    assert sorted(scene.outside.effects) == sorted(str(one.id) for one in operations[1::2])
    reasons = [Approval.objects.get(operation_id=one.id).reason for one in operations]
    assert reasons == [f"about {one.position}" for one in operations]


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

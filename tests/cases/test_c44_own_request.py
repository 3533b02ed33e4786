"""C44. Who started the run approves its call: refused on every path while four eyes are asked for."""

from __future__ import annotations

import pytest

from approvals import services
from approvals.models import Approval, Decision
from approvals.services import Refused
from tests.boundary_scene import committed, decider, make_scene, rule

pytestmark = pytest.mark.usefixtures("committed")
__all__ = ["committed"]


def asked_under_four_eyes():
    scene = make_scene("opaque", allow=False)
    rule(scene.project, "require", four_eyes=True, group="approvers")
    operation = scene.another(scene.run)
    return scene, Approval.objects.get(operation_id=operation.id)


@pytest.mark.parametrize(
    "who",
    [
        decider("starter", "approvers"),
        decider("Starter", "approvers", may_break_glass=True),
        decider("key of starter", "approvers", names=frozenset({"starter"})),
    ],
)
def test_own_request_is_refused_and_on_record(who):
    scene, asked = asked_under_four_eyes()
    with pytest.raises(Refused):
        services.decide(asked.id, scene.project.slug, who, "approve")
    assert Decision.objects.get(approval=asked).refusal == "may_not_decide"
    asked.refresh_from_db()
    assert asked.state == "waiting"


def test_ones_own_request_may_be_rejected():
    scene, asked = asked_under_four_eyes()
    assert services.decide(asked.id, scene.project.slug, decider("starter", "approvers"), "reject").state == "rejected"


def test_somebody_else_may_approve():
    scene, asked = asked_under_four_eyes()
    assert services.decide(asked.id, scene.project.slug, decider("anna", "approvers"), "approve").state == "granted"

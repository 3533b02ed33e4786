"""C27. Two people decide at the same moment."""

from __future__ import annotations

import pytest

from approvals import services
from approvals.models import Approval, Decision
from approvals.services import AlreadyDecided
from tests.boundary_scene import at_once, committed, decider, make_scene, perform_now, told

pytestmark = pytest.mark.usefixtures("committed")
__all__ = ["committed"]


def test_twenty_decisions_at_once_have_one_outcome():
    scene = make_scene("opaque", allow=False)
    asked = Approval.objects.get(operation_id=scene.id)

    def decision(number: int):
        who, verdict = ("anna", "approve") if number % 2 else ("bert", "reject")
        return lambda: services.decide(asked.id, scene.project.slug, decider(who), verdict)

    answers = at_once(*(decision(number) for number in range(20)))
    refused = [answer for answer in answers if isinstance(answer, AlreadyDecided)]
    given = [answer for answer in answers if isinstance(answer, Approval)]
    assert len(refused) + len(given) == 20
    assert len({(answer.state, answer.decided_by) for answer in given}) == 1
    assert {error.details["decided_by"] for error in refused} == {given[0].decided_by}
    assert all(error.details["decided_at"] for error in refused)
    assert Decision.objects.filter(approval=asked, applied=True).count() == 1
    perform_now(scene.id)
    assert len(scene.outside.effects) == (given[0].state == "granted")
    assert sum(line.startswith("approval.") for line in told(scene.id)) == 2


def test_the_same_person_saying_the_same_again_gets_the_first_answer():
    scene = make_scene("opaque", allow=False)
    asked = Approval.objects.get(operation_id=scene.id)
    first, again = (services.decide(asked.id, scene.project.slug, decider("anna"), "approve") for _ in range(2))
    assert first.decided_at == again.decided_at
    with pytest.raises(AlreadyDecided):
        services.decide(asked.id, scene.project.slug, decider("anna"), "reject")

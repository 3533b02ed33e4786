"""A tool that is switched off while its call waits for a person must not leave a request that nobody can end."""

from __future__ import annotations

import pytest

from approvals import services as approvals
from approvals.models import Approval
from runs.models import Operation, Tool
from tests.boundary_scene import decider, make_scene, perform_now

pytestmark = pytest.mark.django_db(transaction=True)


def waiting_scene():
    scene = make_scene(allow=False)
    return scene, scene.operation


def test_the_request_stays_open_and_a_no_still_closes_the_call():
    scene, operation = waiting_scene()
    Tool.objects.update(enabled=False)
    assert perform_now(operation.id).state == "awaiting_approval"
    approval = Approval.objects.get(operation_id=operation.id)
    approvals.decide(approval.id, scene.project.slug, decider(), "reject", "not needed any more")
    assert Operation.objects.get(id=operation.id).state == "rejected"


def test_after_a_yes_the_call_is_blocked_because_the_tool_is_off():
    scene, operation = waiting_scene()
    approval = Approval.objects.get(operation_id=operation.id)
    approvals.decide(approval.id, scene.project.slug, decider(), "approve")
    Tool.objects.update(enabled=False)
    assert perform_now(operation.id).state == "blocked"

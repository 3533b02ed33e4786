"""C33. The narrower and later decision wins, and a denial never turns into an execution."""

from __future__ import annotations

import pytest

from approvals import services
from approvals.models import Approval, Policy
from tests.boundary_scene import committed, decider, make_scene, perform_now, rule

pytestmark = pytest.mark.usefixtures("committed")
__all__ = ["committed"]


def decided(scene, verdict: str) -> None:
    asked = Approval.objects.get(operation_id=scene.id)
    services.decide(asked.id, scene.project.slug, decider(), verdict)


def test_a_denied_call_stays_denied_under_a_rule_that_always_allows():
    scene = make_scene("opaque", allow=False)
    decided(scene, "reject")
    rule(scene.project, "allow", tool=scene.tool.name)
    assert perform_now(scene.id).state == "rejected"
    assert scene.outside.calls == []


def test_a_rule_that_was_revoked_allows_nothing_more():
    scene = make_scene("opaque")
    Policy.objects.filter(project=scene.project.slug).update(retired_at="2026-01-01T00:00Z")
    assert perform_now(scene.id).state == "awaiting_approval"
    assert scene.outside.calls == []


def test_a_later_rule_that_denies_wins_over_a_yes():
    scene = make_scene("opaque", allow=False)
    decided(scene, "approve")
    rule(scene.project, "deny", tool=scene.tool.name)
    assert perform_now(scene.id).state == "denied"


@pytest.mark.parametrize("reversed_order", [False, True], ids=["the wide one first", "the narrow one first"])
def test_the_narrower_no_wins_in_whichever_order_the_rules_were_made(reversed_order):
    scene = make_scene("opaque", allow=False)
    rules = [("allow", {"tool": scene.tool.name}),
             ("deny", {"tool": scene.tool.name, "arguments": ({"path": "$.to", "equals": "rival"},)})]  # fmt: skip
    for answer, match in reversed(rules) if reversed_order else rules:
        rule(scene.project, answer, **match)
    assert scene.another(scene.run, to="rival").state == "denied"
    assert scene.another(scene.run, to="friend").state == "proposed"


def test_a_no_given_between_proposal_and_dispatch_stops_a_call_that_a_rule_allows():
    scene = make_scene("opaque")
    rule(scene.project, "deny", tool=scene.tool.name, arguments=({"path": "$.text", "equals": "x"},))
    assert perform_now(scene.id).state == "denied"
    assert scene.outside.calls == []


def test_which_rule_allowed_a_call_is_on_its_row():
    scene = make_scene("opaque", allow=False)
    made = rule(scene.project, "allow", tool=scene.tool.name)
    operation = scene.another()
    judged = (operation.policy, operation.policy_id, operation.policy_version, operation.policy_answer)
    assert judged == (str(made), made.id, 1, "allow")

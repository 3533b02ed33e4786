"""C36. A denial keeps the reviewer's words as data, and the same call asked again is a new request."""

from __future__ import annotations

import pytest

from approvals import services
from approvals.models import Approval
from tests.boundary_scene import committed, decider, make_scene, perform_now

pytestmark = pytest.mark.usefixtures("committed")
__all__ = ["committed"]


@pytest.mark.parametrize(
    "words",
    ["wrong customer, ask billing first", '{"role":"system"} 🙅', "é" * 5_000, "🙅" * 2_560, "x" * 10_240],
    ids=["plain", "hostile", "10 kB", "10 KiB of emoji", "10 KiB"],
)
def test_the_words_are_kept_whole(words):
    scene = make_scene("opaque", allow=False)
    asked = Approval.objects.get(operation_id=scene.id)
    services.decide(asked.id, scene.project.slug, decider(), "reject", words)
    assert (scene.row().state, scene.row().error_message) == ("rejected", words)
    assert perform_now(scene.id).state == "rejected"


def test_the_same_call_again_is_a_new_request():
    scene = make_scene("opaque", allow=False)
    asked = Approval.objects.get(operation_id=scene.id)
    services.decide(asked.id, scene.project.slug, decider(), "reject", "no")
    again = scene.another(scene.run)
    assert again.state == "awaiting_approval"
    assert Approval.objects.get(operation_id=again.id).state == "waiting"

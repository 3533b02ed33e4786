"""The redelivery table: what follows an attempt whose outcome is unclear, for each declaration of a tool.

Rows of the table, each with a call that failed under way and one whose worker died (DESIGN section 4).
"""

from __future__ import annotations

import pytest

from runs.boundary import operations
from runs.boundary.contracts import ProbeVerdict
from tests.boundary_scene import committed, dispatched, make_scene, perform_now, put_back, quiet, told

pytestmark = pytest.mark.usefixtures("committed")
__all__ = ["committed"]

UNCLEAR = "tool.failed uncertain"


@pytest.mark.parametrize(
    ("kind", "plan", "state", "calls", "effects"),
    [
        ("read", ["nothing", "answer"], "succeeded", 2, 1),
        ("read", ["nothing"] * 4, "failed", 4, 0),
        ("keyed", ["effect", "answer"], "succeeded", 2, 1),
        ("keyed", ["nothing", "answer"], "succeeded", 2, 1),
        ("keyed", ["effect"] * 4, "uncertain", 4, 1),
        ("probed", ["effect"], "succeeded", 1, 1),
        ("probed", ["nothing"], "uncertain", 1, 0),  # not found, but its deadline has not passed: it may still come
        ("opaque", ["effect"], "uncertain", 1, 1),
        ("opaque", ["nothing"], "uncertain", 1, 0),
    ],
)
def test_a_call_that_fails_under_way(monkeypatch, kind, plan, state, calls, effects):
    monkeypatch.setattr("runs.boundary.perform.AGAIN_PAUSES_SECONDS", (0.0,))
    scene = make_scene(kind, plan)
    assert perform_now(scene.id).state == state
    assert (len(scene.outside.calls), len(scene.outside.effects)) == (calls, effects)


@pytest.mark.parametrize(
    ("kind", "sent", "seconds_ago", "state", "calls"),
    [
        ("read", False, 0, "succeeded", 1),
        ("keyed", False, 0, "succeeded", 1),
        ("expired", False, 5, "uncertain", 0),
        ("probed", False, 0, "succeeded", 1),  # it had not said that it sends: provably nothing left
        ("probed", True, 0, "uncertain", 0),  # absent, but early
        ("probed", True, 100, "succeeded", 1),  # absent, and late enough to believe it
        ("opaque", False, 0, "succeeded", 1),
        ("opaque", True, 0, "uncertain", 0),
        ("opaque", True, 100, "uncertain", 0),
    ],
)
def test_a_call_whose_worker_died_without_an_effect(kind, sent, seconds_ago, state, calls):
    scene = make_scene(kind)
    given = dispatched(scene.id)
    if sent:
        operations.mark_sending(given.operation_id, given.attempt)
    put_back(scene.id, seconds_ago)
    assert perform_now(scene.id).state == state
    assert len(scene.outside.calls) == calls


@pytest.mark.parametrize(
    ("verdict", "seconds_ago", "state", "calls"),
    [
        (ProbeVerdict.ONE, 0, "succeeded", 0),
        (ProbeVerdict.ABSENT, 0, "uncertain", 0),
        (ProbeVerdict.ABSENT, 100, "succeeded", 1),
        (ProbeVerdict.MANY, 100, "uncertain", 0),
        (ProbeVerdict.CANNOT_TELL, 100, "uncertain", 0),
    ],
)
def test_what_a_probe_finds_decides_of_a_write_that_was_sent(verdict, seconds_ago, state, calls):
    scene = make_scene("probed")
    given = dispatched(scene.id)
    operations.mark_sending(given.operation_id, given.attempt)
    put_back(scene.id, seconds_ago)
    scene.outside.verdict = verdict
    assert perform_now(scene.id).state == state
    assert len(scene.outside.calls) == calls


def test_a_key_that_expired_is_not_used_again_but_the_probe_is_asked():
    scene = make_scene("probed", idempotent_for_seconds=1)
    dispatched(scene.id)
    put_back(scene.id, 5)
    scene.outside.effects.append(str(scene.id))
    assert perform_now(scene.id).state == "succeeded"
    assert scene.outside.calls == []


def test_each_attempt_is_told_with_its_start_and_its_end(monkeypatch):
    monkeypatch.setattr("runs.boundary.perform.AGAIN_PAUSES_SECONDS", (0.0,))
    scene = make_scene("keyed", ["effect", "answer"])
    perform_now(scene.id)
    assert told(scene.id) == ["tool.started", "tool.failed uncertain", "tool.started", "tool.completed"]


def test_a_write_that_provably_never_left_ends_as_failed_not_as_uncertain(monkeypatch):
    """Four workers died before it could be sent."""
    scene = make_scene("opaque")
    dispatched(scene.id)
    for _ in range(3):
        operations.again(operations.interrupted(scene.id), quiet)
    assert perform_now(scene.id).state == "failed"
    assert scene.outside.calls == []


def test_a_settled_operation_is_not_performed_again():
    scene = make_scene("opaque")
    assert [perform_now(scene.id).state, perform_now(scene.id).state] == ["succeeded", "succeeded"]
    assert len(scene.outside.effects) == 1


def test_an_uncertain_operation_is_not_performed_again():
    scene = make_scene("opaque", ["effect"])
    assert [perform_now(scene.id).state, perform_now(scene.id).state] == ["uncertain", "uncertain"]
    assert len(scene.outside.effects) == 1
    assert told(scene.id) == ["tool.started", UNCLEAR]

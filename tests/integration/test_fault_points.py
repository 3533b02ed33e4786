"""Fault points on a real operation: each is passed once, in order; a cut database and a failure lose nothing."""

from __future__ import annotations

from typing import get_args

import pytest
from django.db import connection

from runs.boundary import faults, operations
from runs.boundary.fault_points import Point
from tests.boundary_scene import committed, make_scene, perform_now, told

pytestmark = pytest.mark.usefixtures("committed")
__all__ = ["committed"]

MARKS = ("before_sending_mark", "after_sending_mark")


@pytest.fixture(autouse=True)
def forget():
    faults._reached.clear()
    yield
    faults._reached.clear()


@pytest.mark.parametrize(("kind", "passed"), [("opaque", get_args(Point)), ("keyed", None), ("read", None)])
def test_an_operation_passes_the_points_in_their_order(monkeypatch, kind, passed):
    seen: list[str] = []
    monkeypatch.setattr(faults, "reach", lambda point, name: seen.append(point))
    scene = make_scene(kind)
    assert perform_now(scene.id).state == "succeeded"
    assert tuple(seen) == (passed or tuple(point for point in get_args(Point) if point not in MARKS))


@pytest.mark.parametrize("point", [point for point in get_args(Point) if point != "after_settle"])
def test_a_database_that_is_cut_at_any_point_costs_no_outcome(settings, point):
    """All connections are ended at this point, once: the operation still ends, with one effect."""
    scene = make_scene("opaque")
    settings.KERNEL_FAULTS = f"{point}:{scene.tool.name}#1=cut"
    connection.close()  # the test's own would be cut as well
    assert perform_now(scene.id).state == "succeeded"
    assert len(scene.outside.effects) == 1
    assert told(scene.id) == ["tool.started", "tool.completed"]


@pytest.mark.parametrize(
    ("kind", "point", "calls"),
    [
        ("opaque", "before_sending_mark", 1),
        ("opaque", "before_send", 0),
        ("keyed", "before_send", 1),
        ("read", "before_send", 1),
    ],
)
def test_what_follows_a_failure_before_the_first_byte(settings, monkeypatch, kind, point, calls):
    """Before the mark it provably never left and goes again; after it, of an opaque write, nobody can know."""
    monkeypatch.setattr("runs.boundary.perform.AGAIN_PAUSES_SECONDS", (0.0,))
    scene = make_scene(kind)
    settings.KERNEL_FAULTS = f"{point}:{scene.tool.name}#1=raise"
    assert perform_now(scene.id).state == ("succeeded" if calls else "uncertain")
    assert len(scene.outside.calls) == calls


def test_an_armed_point_in_production_stops_the_operation_before_its_effect(settings):
    from django.core.exceptions import ImproperlyConfigured

    scene = make_scene("opaque")
    settings.PRODUCTION, settings.KERNEL_FAULTS = True, f"after_effect:{scene.tool.name}-other=kill"
    with pytest.raises(ImproperlyConfigured, match="production"):
        perform_now(scene.id)
    assert scene.outside.calls == []
    assert operations.interrupted(scene.id) is not None

"""Fault points: armed by a text, for one operation's name, and for one time if it says so."""

from __future__ import annotations

import pytest
from django.core.exceptions import ImproperlyConfigured

from runs.boundary import faults


@pytest.fixture(autouse=True)
def forget():
    faults._reached.clear()


def reached(settings, armed: str, times: int, name: str = "pay") -> list[bool]:
    """For each time that the point is reached, whether the fault struck."""
    settings.KERNEL_FAULTS = armed
    struck = []
    for _ in range(times):
        try:
            faults.reach("after_effect", name)
            struck.append(False)
        except faults.Injected:
            struck.append(True)
    return struck


def test_an_armed_point_strikes_each_time(settings):
    assert reached(settings, "after_effect:pay=raise", 2) == [True, True]


def test_it_strikes_only_the_time_that_it_names(settings):
    assert reached(settings, "after_effect:pay#2=raise", 3) == [False, True, False]


def test_it_leaves_other_operations_alone(settings):
    assert reached(settings, "after_effect:pay=raise;after_settle:look=raise", 1, name="look") == [False]


@pytest.mark.parametrize(
    "text", ["after_effect", "nowhere:pay=kill", "after_effect:pay=melt", "after_effect:pay#x=kill"]
)
def test_what_cannot_be_armed_is_an_error_that_shows_the_form(settings, text):
    with pytest.raises(ImproperlyConfigured, match="POINT:NAME=ACTION"):
        reached(settings, text, 1)


def test_production_refuses_to_be_armed(settings):
    settings.PRODUCTION = True
    with pytest.raises(ImproperlyConfigured, match="production"):
        reached(settings, "after_effect:pay=hang", 1)

"""Placeholders are filled once, from what the call has."""

from __future__ import annotations

import pytest

from runs.boundary.placeholders import Missing, Values, filled

VALUES = Values(
    "op-1", {"order": {"id": 7}, "lines": [{"sku": "a"}], "evil": "{operation_id}", "none": None}, "/w", {"id": 3}
)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{argument:order.id}", 7),
        ("order {argument:order.id}, {argument:order}", 'order 7, {"id": 7}'),
        ("{argument:lines.0.sku}", "a"),
        ("{argument:evil}", "{operation_id}"),
        ("{argument:none}", None),
        ("{result:id}", 3),
        ("{arguments}", VALUES.arguments),
        ("{workspace}/{operation_id}", "/w/op-1"),
        ({"a": "{argument:missing?}", "b": ["{argument:missing?}", 1]}, {"b": [1]}),
        ("<{argument:missing?}>", "<>"),
        ("{unknown} {", "{unknown} {"),
        ({"n": 1.5, "t": True, "x": None}, {"n": 1.5, "t": True, "x": None}),
    ],
)
def test_what_a_template_becomes(template, expected):
    assert filled(template, VALUES) == expected


@pytest.mark.parametrize(
    "template",
    ["{argument:missing}", "{argument:lines.9.sku}", "{argument:evil.x}", "{result:missing}", ["{argument:x}"]],
)
def test_what_is_missing_is_named(template):
    with pytest.raises(Missing, match="stands for nothing"):
        filled(template, VALUES)

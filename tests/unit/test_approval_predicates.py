"""Conditions on arguments: what they look at, what fits; hostile patterns and values neither hang nor slip by."""

from __future__ import annotations

import time

import pytest

from approvals import predicates
from kernel_project.primitives.canonical import canonical_json
from kernel_project.primitives.errors import Invalid

HANG_SECONDS = 2.0  # far more than any of these takes, far less than a hang


def parsed(*conditions):
    return predicates.parsed(canonical_json(predicates.canonical(conditions)))


def fits(arguments, *conditions, careful=False) -> bool:
    return predicates.hold(parsed(*conditions), arguments, careful=careful)


@pytest.mark.parametrize(
    ("path", "arguments"),
    [
        ("$.amount", {"amount": 5}),
        ("amount", {"amount": 5}),
        ("$.order.lines[1].price", {"order": {"lines": [{"price": 1}, {"price": 5}]}}),
        ("$['a.b']", {"a.b": 5}),
        ('$["a b"][0]', {"a b": [5]}),
        ("$.lines[*].price", {"lines": [{"price": 5}, {"price": 5}]}),
        ("$.é", {"é": 5}),
    ],
)
def test_a_path_leads_to_its_value(path, arguments):
    assert fits(arguments, {"path": path, "equals": 5})
    assert not fits(arguments, {"path": path, "equals": 6})


@pytest.mark.parametrize(
    ("kind", "value", "argument", "fitting"),
    [
        ("equals", 1000, 1000.0, True),
        ("equals", 1, True, False),
        ("equals", "1", 1, False),
        ("equals", None, None, True),
        ("equals", {"b": 1, "a": [2]}, {"a": [2], "b": 1}, True),
        ("equals", 9007199254740993, 9007199254740992, False),
        ("equals", "é", "e\u0301", False),
        ("in", ["EUR", "USD"], "EUR", True),
        ("in", ["EUR", "USD"], "eur", False),
        ("range", {"min": 0, "max": 100}, 100, True),
        ("range", {"min": 0, "max": 100}, 100.01, False),
        ("range", {"min": 0, "max": 100}, -0.0, True),
        ("range", {"max": 100}, "99.99", True),
        ("range", {"max": 0.1}, "0.1", True),
        ("range", {"max": 100}, "1e1", False),  # no plain decimal: cannot be judged
        ("range", {"max": 100}, True, False),
        ("range", {"max": 9007199254740992}, 9007199254740993, False),
        ("pattern", "DE[0-9]{2}.*", "DE02 1203", True),
        ("pattern", "DE", "DEX", False),
        ("pattern", "a|b", "ab", False),
        ("pattern", ".*", "two\nlines", True),
        ("pattern", "a", "a\n", False),
        ("pattern", "5", 5, False),
    ],
)
def test_what_fits(kind, value, argument, fitting):
    assert fits({"x": argument}, {"path": "$.x", kind: value}) is fitting


def test_all_conditions_must_hold():
    both = ({"path": "$.a", "equals": 1}, {"path": "$.b", "equals": 2})
    assert fits({"a": 1, "b": 2}, *both)
    assert not fits({"a": 1, "b": 3}, *both)


@pytest.mark.parametrize("value", ["1000000", True, [5], {"n": 5}, None, "a lot", "9" * 40])
def test_a_value_that_cannot_be_judged_fits_what_denies_or_asks_and_not_what_allows(value):
    small = {"path": "$.amount", "range": {"max": 100}}
    assert not fits({"amount": value}, small)
    if value != "1000000":  # a number as text is judged as one
        assert fits({"amount": value}, small, careful=True)
    assert fits({"to": [value]}, {"path": "$.to", "pattern": "x"}, careful=True)


def test_of_several_values_one_is_enough_to_deny_and_all_are_needed_to_allow():
    evil = {"path": "$.to[*]", "pattern": ".*@evil\\.example"}
    mixed = {"to": ["a@good.example", "b@evil.example"]}
    assert fits(mixed, evil, careful=True)
    assert not fits(mixed, evil)
    assert not fits({"to": []}, evil)
    assert not fits({"to": []}, evil, careful=True)


@pytest.mark.parametrize("careful", [True, False])
def test_a_path_that_leads_nowhere_fits_nothing(careful):
    for path in ("$.gone", "$.list[7]", "$.text.inner", "$.list.name", "$.text[0]", "$.text[*]"):
        assert not fits({"list": [1], "text": "x"}, {"path": path, "equals": 1}, careful=careful)


@pytest.mark.parametrize(
    "condition",
    [
        {}, {"path": "$.a"}, {"equals": 1}, {"path": "$.a", "equals": 1, "in": [1]}, {"path": "$.a", "like": "x"},
        {"path": "", "equals": 1}, {"path": "$", "equals": 1}, {"path": "$a", "equals": 1},
        {"path": "$..a", "equals": 1}, {"path": "$.a[", "equals": 1}, {"path": "$.a[-1]", "equals": 1},
        {"path": "$.a[?(@.x)]", "equals": 1}, {"path": "$." + "a" * 300, "equals": 1}, {"path": 7, "equals": 1},
        {"path": "$.a", "in": []}, {"path": "$.a", "in": "abc"}, {"path": "$.a", "in": list(range(501))},
        {"path": "$.a", "range": {}}, {"path": "$.a", "range": {"min": 2, "max": 1}}, {"path": "$.a", "range": 5},
        {"path": "$.a", "range": {"min": "low"}}, {"path": "$.a", "range": {"min": True}},
        {"path": "$.a", "range": {"min": float("nan")}}, {"path": "$.a", "range": {"most": 1}},
        {"path": "$.a", "pattern": ""}, {"path": "$.a", "pattern": 5}, {"path": "$.a", "pattern": "("},
        {"path": "$.a", "pattern": "a)|(?:b"}, {"path": "$.a", "pattern": "(?=a)"},
        {"path": "$.a", "pattern": r"(a)\1"},
        {"path": "$.a", "pattern": "x" * 301}, {"path": "$.a", "pattern": "(a{1000}){1000}"},
        {"path": "$.a", "pattern": "((a{50}){50}){50}"}, {"path": "$.a", "pattern": r"\w{999999999999}"},
        {"path": "$.a", "pattern": r"\p{L}{1000}"},
    ],
)  # fmt: skip
def test_what_is_no_condition_is_refused_with_a_sentence(condition):
    began = time.perf_counter()
    with pytest.raises(Invalid) as refused:
        predicates.canonical([condition])
    assert len(refused.value.message) > 10
    assert time.perf_counter() - began < HANG_SECONDS


def test_too_many_conditions_are_refused():
    one = {"path": "$.a", "equals": 1}
    with pytest.raises(Invalid):
        predicates.canonical([one] * 11)
    with pytest.raises(Invalid):
        predicates.canonical([{"path": "$.a", "equals": "x" * 30_000}])


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("(a+)+b", "a" * 9_000 + "cb"),
        ("(a|a)*b", "a" * 9_000 + "cb"),
        ("(a|aa)+$", "a" * 9_999 + "b"),
        ("([a-z]?){30}[a-z]{30}b", "a" * 9_998 + "cb"),
        ("(.*){30}=(.*){30}", "a=" * 5_000 + "\u2028"),
        (r"(\w{31}\W{31}x?)*", "aé" * 5_000),
        (r"(?:.*a){500}x", "a" * 9_998 + "yx"),
    ],
)
def test_a_hostile_pattern_on_a_hostile_text_does_not_hang(pattern, text):
    began = time.process_time()
    fits({"x": text}, {"path": "$.x", "pattern": pattern})
    assert time.process_time() - began < HANG_SECONDS


def test_a_text_that_is_too_long_for_a_pattern_cannot_be_judged():
    long = {"x": "a" * (predicates.TEXT_CHARS_MAX + 1)}
    assert not fits(long, {"path": "$.x", "pattern": "a*"})
    assert fits(long, {"path": "$.x", "pattern": "b"}, careful=True)


def test_a_list_that_is_too_long_to_look_at_cannot_be_judged():
    many = {"x": [1] * (predicates.FOUND_MAX + 1)}
    assert not fits(many, {"path": "$.x[*]", "equals": 1})
    assert fits(many, {"path": "$.x[*]", "equals": 2}, careful=True)


@pytest.mark.parametrize(
    ("narrow", "wide", "within"),
    [
        ([{"path": "$.a", "range": {"max": 10}}], [{"path": "$.a", "range": {"max": 100}}], True),
        ([{"path": "$.a", "range": {"max": 100}}], [{"path": "$.a", "range": {"max": 10}}], False),
        ([{"path": "$.a", "range": {"max": 10}}], [{"path": "$.b", "range": {"max": 100}}], False),
        ([{"path": "$.a", "equals": 5}], [{"path": "$.a", "range": {"min": 0, "max": 10}}], True),
        ([{"path": "$.a", "equals": 5}], [{"path": "$.a", "in": [4, 5]}], True),
        ([{"path": "$.a", "equals": "DE1"}], [{"path": "$.a", "pattern": "DE.*"}], True),
        ([{"path": "$.a", "equals": 5}, {"path": "$.b", "equals": 1}], [{"path": "$.b", "equals": 1}], True),
        ([{"path": "$.a", "equals": 5}], [], True),
        ([], [{"path": "$.a", "equals": 5}], False),
    ],
)
def test_which_conditions_are_narrower(narrow, wide, within):
    assert predicates.imply(parsed(*narrow), parsed(*wide)) is within


@pytest.mark.parametrize(
    "arguments",
    [
        {"lines": [{"price": 5}, {}]},
        {"lines": [{"price": 5}, {"cost": 10**6}]},
        {"lines": [{"price": 5}, 10**6]},
        {"lines": [{"price": 5}, None]},
    ],
)
def test_to_allow_each_branch_must_lead_to_a_value(arguments):
    small = {"path": "$.lines[*].price", "range": {"max": 100}}
    assert not fits(arguments, small)
    assert fits(arguments, small, careful=True)


def test_a_branch_within_a_branch_that_ends_early_is_not_allowed_either():
    small = {"path": "$.orders[*].lines[*]", "equals": 5}
    assert fits({"orders": [{"lines": [5]}, {"lines": [5, 5]}]}, small)
    for dropped in ({}, {"lines": []}, {"lines": 7}, {"lines": {"0": 7}}):
        assert not fits({"orders": [{"lines": [5]}, dropped]}, small), dropped
    assert not fits({"lists": [[5], []]}, {"path": "$.lists[*][0]", "equals": 5})
    assert not fits({"lists": [{}]}, {"path": "$.lists[*].x", "equals": 5}, careful=True)

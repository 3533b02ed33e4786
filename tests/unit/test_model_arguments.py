"""C01. Arguments that a model wrote are one strict JSON object, or a reason that goes back to it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel_project.primitives.canonical import canonical_json
from runs.boundary.models import ArgumentsError, parse_arguments
from runs.boundary.models.arguments import ARGUMENTS_CHARACTERS_MAX, REASON_CHARACTERS_MAX


@pytest.mark.parametrize("raw", ["", "  \n", "null", "{}", None])
def test_nothing_is_an_empty_object(raw: str | None) -> None:
    assert parse_arguments(raw) == {}


def test_an_object_is_read_exactly() -> None:
    raw = '{"amount": 9007199254740993, "rate": 0.1, "name": "Zoë \\u00e9", "deep": {"list": [1, null, true]}}'
    expected = {"amount": 9007199254740993, "rate": 0.1, "name": "Zoë é", "deep": {"list": [1, None, True]}}
    assert parse_arguments(raw) == expected


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ('{"q": "a" "b"}', "not valid JSON"),
        ('{"q":1}}', "not valid JSON"),
        ('{"path":"/srv/data","recursive":tr', "not valid JSON"),
        ("[]", "not a list"),
        ('"text"', "not a string"),
        ("12", "not a number"),
        ("true", "not true or false"),
        ('{"a": NaN}', "NaN"),
        ('{"a": -Infinity}', "Infinity"),
        ('{"a": 1e400}', "too large"),
        ('{"a": 1' + "0" * 5000 + "}", "too many digits"),
        ('{"to": "a", "to": "b"}', "'to' occurs twice"),
        ('{"in": {"to": "a", "to": "b"}}', "'to' occurs twice"),
        ('{"a": "\\ud800"}', "half a surrogate pair"),
        ('{"a":' * 70 + "1" + "}" * 70, "nested deeper than 64"),
        ("[" * 100_000, "nested too deeply"),
        ("\ufeff{}", "not valid JSON"),
    ],
)
def test_anything_else_is_refused_with_a_reason(raw: str, reason: str) -> None:
    refused = parse_arguments(raw)
    assert isinstance(refused, ArgumentsError)
    assert reason in refused.reason
    assert len(refused.reason) <= REASON_CHARACTERS_MAX


def test_the_length_has_a_limit() -> None:
    assert isinstance(parse_arguments('{"a":"' + "x" * ARGUMENTS_CHARACTERS_MAX + '"}'), ArgumentsError)


def test_a_reason_holds_no_control_characters() -> None:
    refused = parse_arguments('{"\\u001b[2J\\u202e": 1, "\\u001b[2J\\u202e": 2}')
    assert isinstance(refused, ArgumentsError)
    assert refused.reason.isprintable()


@given(st.text() | st.recursive(st.none() | st.floats() | st.text(), st.lists).map(json.dumps))
def test_any_text_is_an_object_or_a_reason(raw: str) -> None:
    read = parse_arguments(raw)
    assert isinstance(read, ArgumentsError) or canonical_json(read).startswith("{")


@given(st.dictionaries(st.text(st.characters(codec="utf-8")), st.integers() | st.text(st.characters(codec="utf-8"))))
def test_every_object_is_read_as_it_was_meant(value: dict[str, object]) -> None:
    assert parse_arguments(json.dumps(value)) == value

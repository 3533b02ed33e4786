"""Arguments against input schemas, both written by strangers."""

from __future__ import annotations

import time
from typing import Any

import pytest

from runs.boundary.arguments import ERROR_CHARACTERS_MAX, ERRORS_MAX, schema_problems, validate_arguments

SECONDS_MAX = 5  # each takes far less on an idle machine; without the bounds they take hours


def properties(**schemas: Any) -> dict[str, Any]:
    return {"type": "object", "properties": schemas}


def doubling(levels: int) -> dict[str, Any]:
    """References that double at each level: two to the power of `levels` steps."""
    ways = {f"a{i}": {"anyOf": [{"$ref": f"#/$defs/a{i + 1}"}] * 2} for i in range(levels)}
    return {"$defs": {**ways, f"a{levels}": {"type": "string"}}, "$ref": "#/$defs/a0"}


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = properties(a=schema)
    return schema


@pytest.mark.parametrize(
    ("schema", "arguments"),
    [
        (properties(a={"type": "integer"}), {"a": 1}),
        ({**properties(a={"$ref": "#/$defs/x"}), "$defs": {"x": {"type": "string"}}}, {"a": "b"}),
        ({**properties(), "additionalProperties": False, "patternProperties": {"^x": {}}}, {"x1": 1}),
        (
            {"$schema": "http://json-schema.org/draft-07/schema#", **properties(a={"items": [{"type": "string"}]})},
            {"a": ["b"]},
        ),
        (properties(a={"pattern": "^[a-z]+$"}), {"a": "abc"}),
        ({}, {}),
    ],
)
def test_what_fits(schema: dict[str, Any], arguments: dict[str, Any]) -> None:
    assert validate_arguments(schema, arguments) == []


@pytest.mark.parametrize(
    ("schema", "arguments", "why"),
    [
        (properties(a={"type": "integer"}), {"a": "x"}, "$.a: the value is not of type 'integer'"),
        ({**properties(), "required": ["a"]}, {}, "'a' is a required property"),
        ({**properties(), "additionalProperties": False}, {"b": 1}, "additional property 'b' is not allowed"),
        ({**properties(), "additionalProperties": {"type": "string"}}, {"b": 1}, "$.b: the value is not of type"),
        ({**properties(), "patternProperties": {"^b": {"type": "string"}}}, {"b": 1}, "$.b: the value is not of type"),
        (properties(a={"uniqueItems": True}), {"a": [1, 1.0]}, "not all different"),
        (properties(a={"pattern": "^[a-z]+$"}), {"a": "A"}, "does not match"),
        (properties(), [], "is not of type 'object'"),
        (properties(), {"a": float("nan")}, "cannot be written as JSON"),
        (properties(), {"a": "x" * 5_000_000}, "at most"),
    ],
)
def test_what_does_not_fit(schema: dict[str, Any], arguments: Any, why: str) -> None:
    assert why in validate_arguments(schema, arguments)[0]


@pytest.mark.parametrize(
    ("schema", "arguments", "why"),
    [
        (properties(a={"$ref": "http://127.0.0.1:9/schema"}), {"a": 1}, "not part of it"),
        (properties(a={"$ref": "file:///etc/passwd"}), {"a": 1}, "not part of it"),
        ({"$id": "http://127.0.0.1:9/", "$ref": "other"}, {}, "not part of it"),
        (properties(a={"pattern": "^(a+)+$"}), {"a": "a" * 5000 + "!"}, "does not match"),
        ({"patternProperties": {"^(a+)+$": {}}, "additionalProperties": False}, {"a" * 5000 + "!": 1}, "not allowed"),
        ({"$ref": "#"}, {}, "refers to itself without end"),
        (doubling(40), {}, "more than"),
        (nested(400), {}, "nested too deeply"),
        (properties(a={"type": "strin"}), {}, "not valid JSON Schema"),
        ({"unevaluatedProperties": False, "patternProperties": {"^(a+)+$": {}}}, {"a": 1}, "cannot be used"),
        (properties(a={"description": "x" * 300_000}), {}, "at most"),
    ],
)
def test_a_hostile_schema_is_refused_quickly(schema: dict[str, Any], arguments: Any, why: str) -> None:
    started = time.process_time()
    assert why in validate_arguments(schema, arguments)[0]
    assert time.process_time() - started < SECONDS_MAX


def test_many_different_items_take_little_time() -> None:
    started = time.process_time()
    items = [{"x": number} for number in range(20_000)]
    assert validate_arguments(properties(a={"uniqueItems": True}), {"a": items}) == []
    assert time.process_time() - started < SECONDS_MAX


def test_errors_are_few_short_and_on_one_line() -> None:
    schema = {"type": "object", "additionalProperties": {"type": "integer"}}
    errors = validate_arguments(schema, {f"{number}": "x\n\ud800" * 1000 for number in range(50)})
    assert len(errors) == ERRORS_MAX + 1
    assert all(len(error) <= ERROR_CHARACTERS_MAX and "\n" not in error for error in errors)
    assert all(error.encode() for error in errors)


def test_a_schema_is_checked_when_a_tool_is_registered() -> None:
    assert schema_problems(properties(a={"type": "integer"})) == []
    assert "not valid" in schema_problems({"type": 5})[0]


SECRETS = ('it\'s "s3cret"\n', "pin 4", 731_905, {"deep": ["s3cret-words", 731_905]}, ["731905"])
REFUSING = (
    {"type": "null"}, {"enum": ["a"]}, {"const": 1}, {"maximum": 1, "maxLength": 1, "maxItems": 0, "maxProperties": 0},
    {"pattern": "^z$", "type": "boolean"}, {"anyOf": [{"type": "null"}, {"const": 3}]}, {"not": {}},
    {"unevaluatedItems": False, "unevaluatedProperties": False, "items": False}, {"multipleOf": 7, "minLength": 99},
    {"additionalProperties": False}, {"properties": {"deep": {"contains": {"const": 1}}}, "type": "object"},
)  # fmt: skip


@pytest.mark.parametrize("secret", SECRETS, ids=range(len(SECRETS)))
@pytest.mark.parametrize("schema", REFUSING, ids=range(len(REFUSING)))
def test_no_sentence_repeats_a_value_of_the_arguments(schema: dict[str, Any], secret: Any) -> None:
    """Sentences stand in lists, logs and rows that everybody may read who may not read arguments."""
    told = " ".join(validate_arguments(properties(a=schema), {"a": secret}))
    assert not [part for part in ("s3cret", "pin 4", "731905") if part in told], told

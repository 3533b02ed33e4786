"""C41. Which arguments are equal and which are not is fixed here; the hash is over canonical bytes."""

from __future__ import annotations

import json
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel_project.primitives.canonical import (
    DEPTH_MAX,
    NotCanonical,
    canonical_bytes,
    canonical_json,
    parse_json,
    sha256_hex,
)  # fmt: skip
from kernel_project.primitives.errors import Invalid


def digest(text: str) -> str:
    return sha256_hex(canonical_bytes(parse_json(text)))


EQUAL = [
    ('{"a":1,"b":2}', '{"b":2,"a":1}'),
    ('{"x":{"a":1,"b":2}}', '{ "x" : { "b" : 2 , "a" : 1 } }'),
    ("1e3", "1000.0"),
    ("1E3", "1e+3"),
    ("-0.0", "0.0"),
    ("1e-7", "0.0000001"),
    ('"\\u00e9"', '"é"'),
    ('"\\ud83d\\ude00"', '"😀"'),
    ("1.10", "1.1"),
    ("1e21", "1000000000000000000000.0"),
]
DIFFERENT = [
    ('"\u00e9"', '"e\u0301"'),  # NFC and NFD: what a person sees alike is not what the tool gets
    ("1", "2"),
    ("9007199254740993", "9007199254740992"),  # beyond 2^53 an integer keeps its last digit
    ("9007199254740993", "9007199254740993.0"),
    ('"1"', "1"),
    ("null", '""'),
    ("[1,2]", "[2,1]"),
    ("{}", "[]"),
    ("true", "1"),
    ('{"a":null}', "{}"),
    ('"a"', '"a "'),
]


@pytest.mark.parametrize(("one", "other"), EQUAL)
def test_equal(one, other):
    assert digest(one) == digest(other)


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_different(one, other):
    assert digest(one) != digest(other)


WRITTEN = {
    "1000": [1000, 1000.0],
    "0": [-0.0],
    "1e-7": [1e-7],
    "1e+21": [1e21],
    "0.30000000000000004": [0.1 + 0.2],
    "9007199254740993": [2**53 + 1],
    '"\\n\x7f\u2028"': ["\n\x7f\u2028"],
    '"\\u0001"': ["\x01"],
}


@pytest.mark.parametrize(("value", "text"), [(value, text) for text, values in WRITTEN.items() for value in values])
def test_how_values_are_written(value, text):
    assert canonical_json(value) == text


def test_keys_are_ordered_by_utf_16():
    assert canonical_json({"\ufb33": 1, "😀": 2}) == '{"😀":2,"\ufb33":1}'


def test_the_bytes_are_fixed_for_ever():
    value = {"b": [1.5, None, True, "é"], "a": {"z": 10**18 + 1, "A": "", "😀": -1.0}}
    assert canonical_json(value) == '{"a":{"A":"","z":1000000000000000001,"😀":-1},"b":[1.5,null,true,"é"]}'
    assert sha256_hex(canonical_bytes(value)) == "6fa2c4c37dbfc3e78ffc9c10b7ee495e9a79f4fb2debbb548ad61fb5597290d8"


NO_JSON = [float("nan"), float("inf"), -float("inf"), "\ud800", {"\udfff": 1}, {1: 2}, {1, 2}, b"x", object()]


@pytest.mark.parametrize("value", NO_JSON)
def test_what_json_does_not_have_is_refused(value):
    with pytest.raises(NotCanonical):
        canonical_json({"a": [value]})


def test_the_refusal_says_where():
    with pytest.raises(NotCanonical, match=r"\$\.items\[2\]\.score"):
        canonical_json({"items": [1, 2, {"score": float("nan")}]})


def test_deep_nesting_is_refused_and_does_not_end_the_process():
    value: list = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(NotCanonical, match=str(DEPTH_MAX)):
        canonical_json(value)


def test_an_integer_with_too_many_digits_is_refused():
    with pytest.raises(NotCanonical, match="digits"):
        canonical_json(10 ** (sys.get_int_max_str_digits() + 1))


NO_STRICT_JSON = ["NaN", "[Infinity]", "1e400", "-1e400", "{", "'a'", b"\xff", "[" * 100_000, "", "1 2"]


@pytest.mark.parametrize("text", NO_STRICT_JSON)
def test_text_that_is_no_strict_json_is_refused(text):
    with pytest.raises(Invalid):
        parse_json(text)


texts = st.text(st.characters(exclude_categories=["Cs"]))
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)


@settings(deadline=None)
@given(plain)
def test_reading_back_and_writing_again_changes_nothing(value):
    text = canonical_json(value)
    assert canonical_json(json.loads(text)) == text


@settings(deadline=None)
@given(st.dictionaries(texts, st.integers()))
def test_the_order_in_which_keys_were_put_in_does_not_matter(value):
    assert canonical_json(value) == canonical_json(dict(reversed(value.items())))

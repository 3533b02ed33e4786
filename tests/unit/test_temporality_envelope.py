"""The envelope's rules and the canonical form: what is let in, and what counts as the same content."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel_project.primitives.canonical import canonical_json
from kernel_project.primitives.errors import Invalid
from temporality.envelope import Incoming, Undecodable, decode_batch, read_event

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
)


def event(**members: Any) -> dict[str, Any]:
    return {
        "schema": "temporality.event/1",
        "event_id": "e-1",
        "occurred_at": "2025-03-01T10:00:00Z",
        "source": {"id": "s", "integration": "tests"},
        "context": {"project": "p", "run": "r"},
        "type": "test.note",
    } | members


def read(text: str) -> Incoming:
    return read_event(decode_batch(text.encode())[0])


def read_one(**members: Any) -> Incoming:
    return read(json.dumps({"events": [event(**members)]}))


@given(st.dictionaries(st.text(), VALUES, max_size=4))
def test_data_survives_and_its_form_does_not_depend_on_how_it_was_written(data: dict[str, Any]) -> None:
    try:
        plain = read(json.dumps({"events": [event(data=data)]}, ensure_ascii=False))
    except (Invalid, UnicodeEncodeError):
        return  # half a surrogate pair: refused, or not even UTF-8
    spread = read(json.dumps({"events": [event(data=dict(reversed(data.items())))]}, indent=3))
    assert plain.content == spread.content
    assert plain.content == canonical_json(json.loads(plain.content))
    assert json.loads(plain.content).get("data", {}) == json.loads(canonical_json(data))


def test_the_text_as_sent_is_kept_where_it_is_not_the_canonical_one() -> None:
    incoming = read_one(data={"b": 1, "a": 2})
    assert incoming.raw is not None
    assert json.loads(incoming.raw)["data"] == {"b": 1, "a": 2}
    assert read('{"events":[' + incoming.content + "]}").raw is None


def test_integers_keep_every_digit() -> None:
    assert '"n":1000000000000000000000000000001' in read_one(data={"n": 10**30 + 1}).content


def test_one_and_one_point_zero_are_the_same_content_and_the_same_sequence() -> None:
    whole, floating = read_one(data={"sequence": 1}), read_one(data={"sequence": 1.0})
    assert (whole.content, whole.sequence) == (floating.content, floating.sequence)


@pytest.mark.parametrize("sequence", [0, -1, 1.5, "1", True, None, [], 2**63, 10**30])
def test_what_is_no_sequence_is_kept_but_takes_no_place_in_the_run(sequence: Any) -> None:
    assert read_one(data={"sequence": sequence}).sequence is None


def test_a_sequence_needs_a_run() -> None:
    assert read_one(data={"sequence": 1}, context={"project": "p"}).sequence is None


def test_parents_are_the_parent_event_and_the_causes_each_once() -> None:
    incoming = read_one(context={"parent_event_id": "a"}, data={"caused_by": ["b", "a", "b"]})
    assert incoming.parents == ["a", "b"]


@pytest.mark.parametrize("causes", ["x", [1], [""], ["\0"], [["x"]], ["x"] * 101, ["x" * 257], {"a": 1}])
def test_causes_that_are_no_ids_are_shown_as_malformed_not_followed(causes: Any) -> None:
    assert read_one(data={"caused_by": causes}).parents == [""]


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b'{"events":[]', b'{"events":[]}x', b'{"events":[],"events":[]}', b'{"Events":[]}', b"\xff", b"{}",
     b'{"events":[{"a":1,"a":2}]}', b'{"events":[{"a":NaN}]}', b'{"events":[{"a":1e400}]}', b'{"events":[{}],}',
     b'\xef\xbb\xbf{"events":[]}', b'{"events":[' + b"[" * 200_000, b'{"events":[{"a":"\n"}]}', b'{"events":{}}'],
)  # fmt: skip
def test_what_is_not_one_strict_json_batch_is_refused_with_a_sentence(body: bytes) -> None:
    with pytest.raises(Undecodable, match="the body"):
        decode_batch(body)


@pytest.mark.parametrize(
    ("members", "sentence"),
    [
        ({"event_id": " "}, "event_id: must not be blank"),
        ({"extra": 1}, "extra: is not a member"),
        ({"type": "a\0b"}, "type: must not be blank or contain a NUL"),
        ({"event_id": "x" * 257}, "event_id: .* at most 256"),
        ({"event_id": "\ud800"}, "event_id: "),
        ({"data": {"x": "\ud800"}}, "surrogate"),
        ({"occurred_at": "2025-03-01"}, "occurred_at: must be an RFC 3339 time"),
        ({"occurred_at": "9999-12-31T23:59:59-14:00"}, "occurred_at: names a day"),
        ({"type": "knowledge.used", "data": {}}, "data.knowledge_id: is required"),
        ({"type": "hint.x", "context": {"project": " "}}, "context.project: is required"),
        ({"evidence": [{"ref": ""}]}, "evidence.0.ref: must not be blank"),
    ],
)
def test_a_refusal_names_the_member_and_never_its_value(members: dict[str, Any], sentence: str) -> None:
    with pytest.raises(Invalid, match=sentence):
        read_one(**members)


def test_a_wrong_value_is_not_repeated_in_the_refusal() -> None:
    with pytest.raises(Invalid) as refusal:
        read_one(source={"id": {"secret": "hunter2"}, "integration": "x"})
    assert "hunter2" not in refusal.value.message


def test_nulls_and_empty_parts_are_absent() -> None:
    full = read_one(
        data={}, evidence=[], received_at="0001-01-01T00:00:00Z", context={"project": "p", "run": "r", "task": None}
    )
    assert full.content == read_one().content


@pytest.mark.parametrize(
    ("kind", "data", "reason"),
    [
        ("knowledge.forgotten", {}, "not known"),
        ("tool.started.v2", {}, "version 2 of tool.started"),
        ("tool.failed", {"effect": "perhaps"}, "does not fit tool.failed: effect"),
        ("operation.reconciled", {"operation_id": "o", "effect": "none", "note": "x" * 2001}, "longer than 2000 bytes"),
        ("tool.started", {"operation_id": {}}, "operation_id"),
        ("test.note", {"operation_id": {}}, ""),
        ("tool.started", {"whatever": [1]}, ""),
    ],
)
def test_what_cannot_be_interpreted_is_quarantined_with_the_reason(
    kind: str, data: dict[str, Any], reason: str
) -> None:
    found = read_one(type=kind, data=data).quarantine
    assert reason in found if reason else not found

"""The quick way for canonical batches and the strict way for all others say the same of every event."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kernel_project.primitives.canonical import canonical_json
from kernel_project.primitives.errors import Invalid, KernelError
from temporality import envelope
from temporality.canonical_form import canonical_texts
from temporality.envelope import Incoming, decode_batch, read_event
from temporality.projection.folds import FOLDED_TYPES

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
)
DATA = st.fixed_dictionaries(
    {},
    optional={
        "sequence": st.integers(-1, 5) | VALUES,
        "caused_by": st.lists(st.sampled_from(["a", "b", ""]), max_size=3) | VALUES,
        "operation_id": st.sampled_from(["o", "", " "]) | VALUES,
        "knowledge_id": st.just("k"),
        "proposition": st.just("p"),
        "effect": st.sampled_from(["none", "occurred", "perhaps"]),
        "more": VALUES,
    },
)
MEMBERS: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {"data": DATA, "type": st.sampled_from([*sorted(FOLDED_TYPES), "test.note", "tool.started.v2", "hint.x", " "])},
    optional={
        "event_id": st.sampled_from(["", " ", "\0", "e" * 257, "é"]) | st.text(min_size=1),
        "occurred_at": st.sampled_from([
            "2025-03-01T10:00:00Z", "2025-03-01T10:00:00.000001Z", "2025-02-30T10:00:00.000000Z", "2025-W01-1T10:00:00",
            "2025-03-01T24:00:00.000000Z", "2025-03-01T10:00:00.000000+00:00", "2025-03-01 10:00:00.000000Z", "",
        ]),
        "context": st.sampled_from([
            None, {}, {"run": "r"}, {"project": "p", "run": "", "task": None}, {"project": " "}, {"actor": {}},
            {"project": "p", "actor": {"id": "a", "type": "robot"}}, {"parent_event_id": "a", "project": "p", "x": 1},
        ]),
        "evidence": st.sampled_from([None, [], [{"ref": "x"}], [{"ref": ""}], [{"ref": "x", "type": None}], [1]]),
        "received_at": st.sampled_from([None, "0001-01-01T00:00:00Z", 5]),
        "extra": st.just(1),
    },
)  # fmt: skip


def event(**members: Any) -> dict[str, Any]:
    return {
        "schema": "temporality.event/1",
        "event_id": "e-1",
        "occurred_at": "2025-03-01T10:00:00.000000Z",
        "source": {"id": "s", "integration": "tests"},
        "context": {"project": "p", "run": "r"},
        "type": "test.note",
    } | members


def body(*events: dict[str, Any]) -> bytes:
    return ('{"events":[' + ",".join(map(canonical_json, events)) + "]}").encode()


def verdict(sent: bytes) -> list[Incoming] | str:
    try:
        return [read_event(decoded) for decoded in decode_batch(sent)]
    except KernelError as error:
        return error.message


def strictly(sent: bytes) -> list[Incoming] | str:
    try:
        return [read_event(decoded) for decoded in envelope.strict_batch(sent)]
    except KernelError as error:
        return error.message


@example({"context": {}})
@example({"context": {"actor": {}}})
@example({"context": {"actor": {}, "project": "p"}})
@given(MEMBERS)
def test_both_ways_give_the_same_event_or_the_same_refusal(members: dict[str, Any]) -> None:
    try:
        sent = body(event(**members))
    except Invalid:
        return  # half a surrogate pair has no canonical form
    assert verdict(sent) == strictly(sent)


@given(st.lists(DATA, min_size=1, max_size=4))
def test_a_batch_of_canonical_texts_goes_the_quick_way_unless_a_number_looks_odd(several: list[dict[str, Any]]) -> None:
    try:
        sent = body(*[event(data=data) for data in several])
    except Invalid:
        return
    quick = canonical_texts(sent)
    if quick is None:
        return
    assert [text for _, text in quick] == [canonical_json(event(data=data)) for data in several]


def test_what_the_publisher_sends_goes_the_quick_way() -> None:
    data = {"sequence": 3, "caused_by": ["a"], "operation_id": "o", "arguments_hash": "3e-4", "cost": 0.25}
    assert canonical_texts(body(event(data=data), event(data={"note": "größer, 1.0"} | data))) is not None


@pytest.mark.parametrize("context", [{}, {"actor": {}}, {"actor": {}, "project": "p"}])
def test_empty_members_are_absent_however_the_event_was_written(context: dict[str, Any]) -> None:
    sent = event(context=context)
    [quick], [spaced] = verdict(body(sent)), verdict(json.dumps({"events": [sent]}, indent=1).encode())
    assert isinstance(quick, Incoming)
    assert isinstance(spaced, Incoming)
    assert quick.content == spaced.content


NESTED = '{"a":' * 70 + "1" + "}" * 70
ODD = [
    '{"events":[{"a":1,"a":2}]}', '{"events":[{"a": 1}]}', '{"events":[{"b":1,"a":2}]}', '{"events":[{"a":1.0}]}',
    '{"events":[{"a":1e+16}]}', '{"events":[{"a":1e16}]}', '{"events":[{"a":1E5}]}', '{"events":[{"a":-0}]}',
    '{"events":[{"a":-0.0}]}', '{"events":[{"a":0.00001}]}', '{"events":[{"a":NaN}]}', '{"events":[{"a":1e400}]}',
    '{"events":[{"a":"\\u0041"}]}', '{"events":[{"a":"\\/"}]}', '{"events":[{"a":"\\ud800"}]}', '{"events":{}}',
    '{"events":[{"\U0001f511":1,"\uffee":2}]}', f'{{"events":[{NESTED}]}}', '{"events":[1],"x":1}', '{"events":[]}x',
    '[]', '{}', '"events"', "", '{"events":[{"a":1}],"events":[{"a":1}]}', '{"events":null}', '{"events":"ab"}',
]  # fmt: skip


@pytest.mark.parametrize("text", ODD)
def test_what_is_not_canonical_never_goes_the_quick_way(text: str) -> None:
    assert canonical_texts(text.encode()) is None


def test_bytes_that_are_no_text_never_go_the_quick_way() -> None:
    assert canonical_texts(b'{"events":["\xff"]}') is None


@pytest.mark.parametrize("number", [0.5, 123.25, 1e-4, -7.125, 1e15 + 0.5, 10**30])
def test_numbers_that_everybody_writes_alike_keep_their_text(number: float) -> None:
    sent = body(event(data={"n": number}))
    assert canonical_texts(sent) is not None
    assert json.loads(read_event(decode_batch(sent)[0]).content)["data"]["n"] == number

"""What is kept of an answer: something always, never more than may be, and nothing that a store cannot hold."""

from __future__ import annotations

import json

import pytest
from obstore.exceptions import GenericError

from runs.boundary import artifacts, results
from runs.boundary.contracts import EffectResult
from runs.boundary.effects.python import as_result
from runs.boundary.results import SHOWN_BYTES_MAX, pack, shorten


def record(result: EffectResult) -> dict:
    return json.loads(pack(result).record.data)


def test_a_short_answer_is_kept_as_it_is():
    assert record(EffectResult(text="done")) == {"text": "done", "is_error": False, "bytes": 4}


def test_an_empty_answer_has_a_text():
    assert record(EffectResult(text=""))["text"] == results.EMPTY


@pytest.mark.parametrize("text", ["a\x00b", "half \ud800", "\udfff"])
def test_what_no_store_can_hold_is_written_out(text):
    kept = record(EffectResult(text=text, invalid=text, media_type=text))
    assert "\\u" in kept["text"] or "\\ud" in kept["text"]
    json.dumps(kept).encode()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), [{"a": float("nan")}]])
def test_numbers_that_json_does_not_have_are_marked(value):
    """C70."""
    packed = pack(EffectResult(text="score", structured={"score": value}))
    assert "structured content" in packed.invalid
    kept = json.loads(packed.bodies[1].data)
    assert json.dumps(kept, allow_nan=False)


@pytest.mark.parametrize("value", [{"n": 10**5_000}, {1, 2}, {"k": object()}, "\ud800", {"\x00": "\x00"}])
def test_structured_content_of_any_kind_is_kept_in_some_form(value):
    assert len(pack(EffectResult(text="x", structured=value)).bodies) == 2


def test_deep_nesting_does_not_end_the_process():
    deep: list = []
    for _ in range(5_000):
        deep = [deep]
    assert "nested" in pack(EffectResult(text="x", structured=deep)).invalid


@pytest.mark.parametrize("size", [159_000, 3_000_000, 30_000_000])
def test_a_long_answer_is_cut_for_the_model_and_kept_once(size):
    """C18."""
    packed = pack(EffectResult(text="x" * size))
    kept = json.loads(packed.record.data)
    assert len(kept["text"].encode()) < SHOWN_BYTES_MAX + 100
    assert (kept["bytes"], kept["complete"]) == (size, True)
    assert [len(body.data) for body in packed.bodies[1:]] == [size]


def test_an_answer_beyond_all_limits_is_cut_and_says_so(monkeypatch):
    monkeypatch.setattr(results, "ARTIFACT_BYTES_MAX", 100_000)
    kept = record(EffectResult(text="é" * 100_000))
    assert (kept["bytes"], kept["complete"]) == (100_000, False)


def test_cutting_never_splits_a_character():
    for limit in range(300, 320):
        shown, cut = shorten(("é🦊" * 200).encode(), limit)
        assert cut
        assert "�" not in shown


def test_a_full_object_store_does_not_lose_the_outcome(monkeypatch):
    """The disk is full after the effect: the row must still be written."""

    def full(*_, **__):
        raise GenericError("no space left on device")

    monkeypatch.setattr(artifacts.objects, "put_if_absent", full)
    packed = pack(EffectResult(text="\x01" * 3_000_000))
    assert "could not be stored" in packed.invalid
    assert all(len(body.data) <= artifacts.INLINE_BYTES_MAX for body in packed.bodies)


@pytest.mark.parametrize("answer", [None, 5, {"a": 1}, [1], float("nan"), object(), b"bytes", {1: 2}])
def test_whatever_a_function_returns_is_a_result(answer):
    pack(as_result(answer))

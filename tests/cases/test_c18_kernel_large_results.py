"""C18. A result of any size, by any kind of tool: kept once, cut for the model, and the effect stands."""

from __future__ import annotations

import pytest

from runs.boundary import artifacts
from runs.boundary.contracts import EffectResult
from runs.boundary.results import SHOWN_BYTES_MAX
from tests.boundary_scene import committed, make_scene, perform_now, result_of

pytestmark = pytest.mark.usefixtures("committed")
__all__ = ["committed"]


@pytest.mark.parametrize("size", [159_000, 3_000_000, 30_000_000])
def test_a_large_result_is_kept_whole_and_shown_cut(size):
    scene = make_scene("opaque", [lambda _: "é" * (size // 2)])
    assert perform_now(scene.id).state == "succeeded"
    record = result_of(scene.row())
    assert (record["bytes"], record["complete"]) == (size, True)
    assert len(record["text"].encode()) <= SHOWN_BYTES_MAX + 100
    whole = artifacts.read(scene.run.id, record["full"].removeprefix("artifact://sha256/"))
    assert len(whole) == size


@pytest.mark.parametrize(
    "answer",
    [
        "nul \x00 and half \ud800",
        "",
        None,
        EffectResult(text="\ud800", invalid="\ud800 \x00", media_type="x/" + "y" * 500),
        EffectResult(text="x", structured={"n": 10**5_000}),
        {"not": {1, 2}},
    ],
    ids=["nul", "empty", "none", "all at once", "digits", "set"],
)
def test_what_cannot_be_kept_as_it_is_is_kept_in_some_form(answer):
    scene = make_scene("opaque", [lambda _: answer])
    assert perform_now(scene.id).state == "succeeded"
    assert result_of(scene.row())["text"]

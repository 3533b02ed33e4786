"""C70. NaN, Infinity and 1e400: kept marked as a result, an error as an argument. Nothing is repeated."""

from __future__ import annotations

import json

import pytest

from kernel_project.primitives.errors import Invalid
from runs.boundary import artifacts
from runs.boundary.contracts import EffectResult
from tests.boundary_scene import committed, make_scene, perform_now, result_of

pytestmark = pytest.mark.usefixtures("committed")
__all__ = ["committed"]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_result_with_it_is_kept_and_the_effect_stands(value):
    answer = EffectResult(text="scored", structured={"scores": [{"score": value}]})

    def scores(dispatch):
        scene.outside.effects.append(dispatch.idempotency_key)
        return answer

    scene = make_scene("opaque", [scores])
    assert [perform_now(scene.id).state for _ in range(2)] == ["succeeded"] * 2
    row = scene.row()
    assert "structured content" in row.result_invalid
    kept = artifacts.read(row.run_id, result_of(row)["structured"].removeprefix("artifact://sha256/"))
    assert json.loads(kept) == {"scores": [{"score": str(value)}]}
    assert len(scene.outside.effects) == 1


@pytest.mark.parametrize("value", [float("nan"), float("inf"), [float("-inf")], {"deep": [float("nan")]}])
def test_an_argument_with_it_is_an_error_for_the_model(value):
    operation = make_scene("opaque").another(text=value)
    assert (operation.state, operation.error_class) == ("blocked", "invalid_arguments")


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", '{"a":1e400}', "-1e400"])
def test_it_is_not_read_as_json(text):
    from kernel_project.primitives.canonical import parse_json

    with pytest.raises(Invalid):
        parse_json(text)

"""C62. The recorded history of every shape of run is replayed against today's workflow.

`python -m pytest tests/workflows/record_histories.py` records new ones. Old ones stay as long as a run that began with
them may live: a change that they refuse needs `workflow.patched`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from temporalio import workflow
from temporalio.client import WorkflowHistory
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Replayer

from runs.loop import workflows
from runs.loop.worker import workflow_runner
from tests.workflows.shapes import SHAPES

FOLDER = Path(__file__).parent.parent / "histories"
RECORDED = sorted(FOLDER.glob("*.json"))


@workflow.defn(name="AgentRun", sandboxed=False)
class Forgetful(workflows.AgentRun):
    @workflow.run
    async def run(self, given: workflows.RunInput) -> str:
        return "completed"


def replayer(definition: type = workflows.AgentRun) -> Replayer:
    return Replayer(workflows=[definition], data_converter=pydantic_data_converter, workflow_runner=workflow_runner())


def history(path: Path) -> WorkflowHistory:
    return WorkflowHistory.from_json(path.stem, path.read_text())


def limits_of(path: Path, monkeypatch) -> None:
    monkeypatch.setattr(workflows, "HISTORY_EVENTS_MAX", SHAPES[path.stem.partition(".")[0]].history_events_max)


def test_every_shape_is_recorded():
    assert {path.stem.partition(".")[0] for path in RECORDED} == set(SHAPES)


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
async def test_todays_workflow_replays(path, monkeypatch):
    limits_of(path, monkeypatch)
    await replayer().replay_workflow(history(path))


async def test_a_workflow_that_leaves_out_an_activity_is_found_out():
    """What this suite is for: such a change would make every running workflow fail its tasks."""

    with pytest.raises(workflow.NondeterminismError):
        await replayer(Forgetful).replay_workflow(history(FOLDER / "plain.1.json"))


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_no_text_of_a_prompt_an_argument_or_a_result_is_in_a_history(path):
    text = path.read_text()
    assert "wrote a" not in text
    assert "read a" not in text

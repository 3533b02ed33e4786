"""Record the history of every shape of run into tests/histories/. No test by itself, so it is run by its name only:

`python -m pytest tests/workflows/record_histories.py`
"""

from __future__ import annotations

from pathlib import Path

import pytest

from runs.loop import temporal, workflows
from tests.kernel import make_project
from tests.workflows.shapes import SHAPES

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("carrier")]

FOLDER = Path(__file__).parent.parent / "histories"


@pytest.mark.parametrize("name", SHAPES)
def test_record(name, monkeypatch):
    monkeypatch.setattr(workflows, "HISTORY_EVENTS_MAX", SHAPES[name].history_events_max)
    run = SHAPES[name].make(make_project())
    number = len(list(FOLDER.glob(f"{name}.*.json"))) + 1
    for place, text in enumerate(temporal._loop.run(_histories(run), 20)):
        (FOLDER / f"{name}.{number + place}.json").write_text(text + "\n")


async def _histories(run) -> list[str]:
    """Every execution of the run's workflow, the oldest first."""
    client = await temporal._loop.client()
    handle = client.get_workflow_handle(f"run-{run.id}")
    found = {}
    run_id = (await handle.describe()).run_id
    while run_id and run_id not in found:
        one = await client.get_workflow_handle(f"run-{run.id}", run_id=run_id).fetch_history()
        found[run_id] = one.to_json()
        run_id = one.events[0].workflow_execution_started_event_attributes.continued_execution_run_id
    return list(reversed(found.values()))

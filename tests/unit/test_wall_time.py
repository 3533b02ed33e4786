"""Where the time of a run went, by its recorded history."""

from __future__ import annotations

from pathlib import Path

import pytest
from temporalio.client import WorkflowHistory

from runs.bench_wall_time import parts

HISTORY = Path(__file__).parent.parent / "histories" / "plain.1.json"


def test_the_parts_are_all_of_the_wall_time():
    events = WorkflowHistory.from_json("plain", HISTORY.read_text()).events
    whole = (events[-1].event_time.ToDatetime() - events[0].event_time.ToDatetime()).total_seconds() * 1000
    found = parts(events)
    assert sum(found.values()) == pytest.approx(whole)
    assert found["activities"] > 0
    assert found["tasks"] > 0

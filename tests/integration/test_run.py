"""A run from its start to its end, on a real database and a real Temporal server."""

from __future__ import annotations

import pytest
from asgiref.sync import sync_to_async

from outbox.models import Event
from runs.boundary.threads import in_thread
from runs.loop import starts
from runs.loop.starts import StartRequest
from runs.models import Run
from tests.kernel import Ledger, call, calls, make_agent, make_project, make_tool, says, states, worker, writes_to
from tests.waiting import until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("temporal_server")]


def begin(turns, tools=(), **more) -> Run:
    project = more.pop("project", None) or make_project()
    version = make_agent(project, turns, tools, **more)
    return starts.start(StartRequest(project=project.slug, agent=version.agent.name, input="go", owner="tester")).run


async def ended(run: Run) -> Run:
    await until(lambda: in_thread(lambda: Run.objects.get(id=run.id).state in Run.ENDED))
    return await in_thread(Run.objects.get, id=run.id)


async def test_a_run_calls_a_tool_and_ends_with_an_answer(tmp_path):
    ledger = Ledger(tmp_path / "ledger")
    project = await sync_to_async(make_project)()
    await in_thread(make_tool, project, "note", writes_to(ledger), effect="write", idempotent_for_seconds=3600)
    async with worker():
        run = await in_thread(begin, [calls(call("note", text="hello")), says("done")], ["note"], project=project)
        run = await ended(run)
    assert run.state == "completed"
    assert await in_thread(states, run) == [("note", "succeeded")]
    assert [line.split()[1] for line in ledger.lines()] == ["hello"]
    types = await in_thread(lambda: list(Event.objects.filter(run_id=run.id).values_list("type", flat=True)))
    assert types == [
        "run.started", "turn.started", "model.started", "model.completed", "tool.started", "tool.completed",
        "turn.completed", "turn.started", "model.started", "model.completed", "run.completed",
    ]  # fmt: skip

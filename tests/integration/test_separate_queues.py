"""Calls of models, tools and sandboxes are taken from queues of their own, where the installation wants that."""

from __future__ import annotations

import uuid
from contextlib import AsyncExitStack

import pytest
from asgiref.sync import sync_to_async

from runs.loop import queues, temporal
from runs.loop.worker import make_worker
from runs.models import Run
from tests.kernel import begin, call, calls, make_project, make_tool, says
from tests.waiting import until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("temporal_server")]


def started() -> Run:
    project = make_project()
    make_tool(project, "read", lambda dispatch, text: text, effect="read")
    make_tool(project, "quick", lambda dispatch, text: text, effect="read", configuration={"local": True})
    return begin(
        [calls(call("read", text="a"), call("quick", text="b")), says("done")], ["read", "quick"], project=project
    )


async def test_each_kind_of_work_is_taken_from_its_own_queue(settings):
    settings.TEMPORAL_TASK_QUEUE, settings.KERNEL_SEPARATE_QUEUES = f"queue-{uuid.uuid4().hex[:8]}", True
    client = await temporal.connect()
    run = await sync_to_async(started)()
    async with AsyncExitStack() as workers:
        for role in queues.ROLES:
            await workers.enter_async_context(make_worker(client, queues.name(role), role))
        ended = Run.objects.filter(id=run.id, state=Run.State.COMPLETED)
        await until(ended.aexists)
    taken = set()
    async for event in client.get_workflow_handle(f"run-{run.id}").fetch_history_events():
        if event.HasField("activity_task_scheduled_event_attributes"):
            scheduled = event.activity_task_scheduled_event_attributes
            taken.add(
                (scheduled.activity_type.name, scheduled.task_queue.name.removeprefix(settings.TEMPORAL_TASK_QUEUE))
            )
    assert taken == {("think", "-model"), ("perform", "-tools")}

"""Where the wall time of runs goes, by Temporal's histories: waits for a worker, activities, workflow tasks."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client

from kernel_project.primitives import ids

E = EventType
TOOK = {E.EVENT_TYPE_ACTIVITY_TASK_STARTED: "activities_waited", E.EVENT_TYPE_WORKFLOW_TASK_STARTED: "tasks_waited"}
DONE = {E.EVENT_TYPE_ACTIVITY_TASK_COMPLETED: "activities", E.EVENT_TYPE_WORKFLOW_TASK_COMPLETED: "tasks"}


async def where_the_time_goes(client: Client, run_ids: Sequence[UUID]) -> dict[str, float]:
    """Milliseconds of one run, the mean of these, of runs that do one thing after another.

    `tasks`: the workflow's own steps, with the local activities that run in them. `…_waited`: until a worker took it.
    `between`: what Temporal needs from one event to the next thing to do.
    """
    sums: dict[str, float] = {}
    for run_id in run_ids:
        history = await client.get_workflow_handle(ids.workflow_id(run_id)).fetch_history()
        for name, milliseconds in parts(history.events).items():
            sums[name] = sums.get(name, 0.0) + milliseconds
    return {name: total / len(run_ids) for name, total in sums.items()}


def parts(events: Sequence[HistoryEvent]) -> dict[str, float]:
    """The parts of one execution's wall time, in milliseconds; together they are all of it."""
    at = {event.event_id: event.event_time.ToDatetime() for event in events}
    found = dict.fromkeys((*TOOK.values(), *DONE.values()), 0.0)
    for event in events:
        if name := TOOK.get(event.event_type) or DONE.get(event.event_type):
            found[name] += _milliseconds(at[_cause(event)], at[event.event_id])
    whole = _milliseconds(at[events[0].event_id], at[events[-1].event_id])
    return {**found, "between": whole - sum(found.values())}


def _cause(event: HistoryEvent) -> int:
    """The event that this one ends the wait for: what was scheduled, or what was started."""
    match event.event_type:
        case E.EVENT_TYPE_ACTIVITY_TASK_STARTED:
            return event.activity_task_started_event_attributes.scheduled_event_id
        case E.EVENT_TYPE_ACTIVITY_TASK_COMPLETED:
            return event.activity_task_completed_event_attributes.started_event_id
        case E.EVENT_TYPE_WORKFLOW_TASK_STARTED:
            return event.workflow_task_started_event_attributes.scheduled_event_id
    return event.workflow_task_completed_event_attributes.started_event_id


def _milliseconds(since: datetime, until: datetime) -> float:
    return (until - since).total_seconds() * 1000

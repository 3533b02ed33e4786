"""The workflow that `bench runs` is measured against: as many activities as a run has calls, and nothing else."""

from __future__ import annotations

from datetime import timedelta

from temporalio import activity, workflow

TURNS = 10
ACTIVITIES = 2 * TURNS  # one for each call of the model and of the tool
ACTIVITY_TIMEOUT = timedelta(seconds=60)


@activity.defn
async def nothing() -> None:
    """The cheapest activity."""


@workflow.defn
class Bare:
    @workflow.run
    async def run(self) -> None:
        for _ in range(ACTIVITIES):
            await workflow.execute_activity(nothing, start_to_close_timeout=ACTIVITY_TIMEOUT)

"""What the matrix is compared with: one effect as one activity, with Temporal's own retries and nothing else."""

from __future__ import annotations

from datetime import timedelta

from temporalio import workflow

START_TO_CLOSE = timedelta(seconds=60)
HEARTBEAT = timedelta(seconds=10)  # a killed worker is noticed this late, as with the kernel


@workflow.defn
class NaivePayment:
    """Calls the tool and reports what it said."""

    @workflow.run
    async def run(self, text: str) -> str:
        answer: str = await workflow.execute_activity(
            "pay", text, start_to_close_timeout=START_TO_CLOSE, heartbeat_timeout=HEARTBEAT, result_type=str
        )
        return answer

"""C55. Values over Temporal's limits reach it by reference only: nothing is refused, nothing is done twice."""

from __future__ import annotations

import pytest

from runs.loop import temporal
from tests.kernel import Ledger, begin, call, calls, ended, make_project, make_tool, says, states, writes_to

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("carrier")]

HISTORY_BYTES_MAX = 200_000  # of a run with megabytes of arguments and results


def history_bytes(run) -> int:
    async def ask() -> int:
        handle = (await temporal._loop.client()).get_workflow_handle(f"run-{run.id}")
        return (await handle.describe()).raw_description.workflow_execution_info.history_size_bytes

    return temporal._loop.run(ask(), 10)


@pytest.mark.parametrize("size", [1_900_000, 2_100_000, 4_200_000])
def test_a_result_over_the_limit(tmp_path, size):
    ledger, project = Ledger(tmp_path / "ledger"), make_project()

    def big(dispatch, text):
        ledger.write(dispatch.idempotency_key, text)
        return "x" * size

    make_tool(project, "big", big, idempotent_for_seconds=3600)
    run = ended(begin([calls(call("big", text="a")), says("done")], ["big"], project=project))
    assert run.state == "completed"
    assert len(ledger.lines()) == 1
    assert history_bytes(run) < HISTORY_BYTES_MAX


def test_forty_calls_of_150_kilobytes_each(tmp_path):
    ledger, project = Ledger(tmp_path / "ledger"), make_project()
    make_tool(project, "note", writes_to(ledger), idempotent_for_seconds=3600)
    many = calls(*[call("note", text=f"{number} {{input}}") for number in range(40)])
    script, limits = [many, says("done")], {"calls_per_turn_max": 40}
    run = ended(begin(script, ["note"], project=project, text="x" * 150_000, limits=limits))
    assert run.state == "completed"
    assert states(run) == [("note", "succeeded")] * 40
    assert len(ledger.lines()) == 40
    assert history_bytes(run) < HISTORY_BYTES_MAX

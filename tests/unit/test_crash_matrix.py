"""The crash matrix must not say that it held when it did not: each kind of breach is reported by name."""

from __future__ import annotations

from uuid import uuid4

import pytest

from kernel_project.drill import adapters, crash, matrix
from kernel_project.drill.adapters import ADAPTERS, POINTS, Cell
from kernel_project.drill.report import Row, table, unpassed
from runs.models import Operation, Run

CELLS = {adapter.name: Cell(adapter, "after_effect") for adapter in ADAPTERS}


def problems_of(
    row: Row, adapter: str = "opaque", state: str = "uncertain", *, may_have_acted: bool = True
) -> list[str]:
    death = matrix.Death(uuid4(), "text", True, may_have_acted)
    one = matrix.Crashed(CELLS[adapter], Run(), [death], 1.0)
    return matrix._broken(row, one, 1, {death.operation_id: Operation(state=state)})


def row(**counts: int) -> Row:
    return Row("opaque", "after_effect", **{"kills": 1, **counts})


def test_nothing_is_wrong_with_an_opaque_call_that_is_uncertain():
    assert problems_of(row(uncertain=1)) == []


@pytest.mark.parametrize("breach", ["repeated_effects", "lost_events", "lost_approvals", "unaccounted"])
def test_each_count_is_a_breach(breach):
    assert len(problems_of(row(**{breach: 1}))) == 1


def test_an_opaque_call_that_may_have_acted_must_be_uncertain():
    assert problems_of(row(), state="succeeded") == ["1 ambiguous operations are not uncertain"]
    assert problems_of(row(), state="succeeded", may_have_acted=False) == []


def test_what_a_machine_can_find_out_must_not_be_left_to_a_person():
    assert problems_of(row(uncertain=1), "keyed") == ["1 are uncertain that could be found out"]


def test_a_kill_that_did_not_happen_is_not_counted_as_survived():
    assert problems_of(Row("opaque", "after_effect", kills=2), state="uncertain") == ["2 kills instead of 1"]


@pytest.mark.parametrize(
    ("state", "verdict", "effects", "agree"),
    [
        ("succeeded", "", 1, True),
        ("succeeded", "", 0, False),
        ("failed", "", 0, True),
        ("failed", "", 1, False),
        ("uncertain", "", 0, True),
        ("uncertain", "", 1, True),
        ("reconciled", "occurred", 1, True),
        ("reconciled", "none", 1, False),
        ("dispatched", "", 1, False),
        ("proposed", "", 0, False),
    ],
)
def test_a_row_that_the_ledger_contradicts_is_unaccounted(state, verdict, effects, agree):
    assert matrix._agree(Operation(state=state, verdict=verdict), effects) is agree


def test_a_fault_point_that_no_call_passes_is_named():
    rows = [Row("read", "before_send", kills=0), Row("keyed", "before_send", kills=3), Row("read", "gone", kills=0)]
    assert unpassed(rows) == ["gone"]


def test_every_fault_point_is_in_the_matrix_for_every_adapter():
    assert {cell.point for cell in adapters.cells()} == set(POINTS)
    assert len(list(adapters.cells())) == len(POINTS) * len(ADAPTERS)


def test_all_problems_of_a_report_are_told():
    broken = Row("opaque", "after_effect", kills=1, broken=["1 lost events"]).as_json()
    report = {"matrix": [broken], "not_passed": ["before_send"], "verify": ["a_rule"]}
    assert crash.problems(report) == [
        "opaque at after_effect: 1 lost events",
        "no call passes the fault point before_send",
        "verify: a_rule",
    ]


def test_the_table_shows_no_zeros_where_nothing_was_killed():
    lines = list(table([Row("read", "before_sending_mark").as_json()]))
    assert lines[-1].startswith("| read | before_sending_mark | process | 0 | – |")

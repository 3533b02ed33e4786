"""The crash matrix must not say that it held when it did not: each kind of breach is reported by name."""

from __future__ import annotations

from uuid import uuid4

import pytest

from kernel_project.drill import adapters, crash, matrix, worker_matrix
from kernel_project.drill.adapters import ADAPTERS, POINTS, Cell
from kernel_project.drill.report import Row, table
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
    assert "1 ambiguous operations are not uncertain" in problems_of(row(), state="succeeded")


def test_what_a_machine_can_find_out_must_not_be_left_to_a_person():
    assert "1 are uncertain that could be found out" in problems_of(row(uncertain=1), "keyed")


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


def test_a_call_that_ends_otherwise_than_it_must_is_a_breach_though_the_ledger_agrees():
    assert problems_of(row(), "keyed", state="failed") == ["1 did not end as succeeded"]
    assert problems_of(row(), "opaque", state="succeeded", may_have_acted=False) == ["1 did not end as uncertain"]


def test_a_kill_where_calls_of_this_kind_do_not_pass_is_told():
    death = matrix.Death(uuid4(), "text", True, False)
    one = matrix.Crashed(Cell(CELLS["keyed"].adapter, "after_sending_mark"), Run(), [death], 1.0)
    broken = matrix._broken(row(), one, 1, {death.operation_id: Operation(state="succeeded")})
    assert broken == ["1 kills at a point that such calls do not pass"]


def report_of(*rows: Row, expected: list[list[str]]) -> dict[str, object]:
    return {"matrix": [one.as_json() for one in rows], "expected": expected, "verify": [], "baseline": []}


def test_an_expected_cell_in_which_nothing_was_killed_has_not_held():
    told = Row("sandbox", "after_effect", not_run="the first one is failed: NotSent sandbox unavailable")
    expected = [["sandbox", "after_effect", "process"], ["read", "after_intent", "process"]]
    assert told.verdict == "not run"
    assert crash.problems(report_of(told, expected=expected)) == [
        "sandbox at after_effect (process) was not run: the first one is failed: NotSent sandbox unavailable",
        "read at after_intent (process) was not run: the cell is missing",
    ]


def test_a_cell_that_its_calls_do_not_pass_is_no_breach():
    row = Row("keyed", "after_sending_mark", expected=False)
    assert (row.verdict, crash.problems(report_of(row, expected=[]))) == ("not passed", [])


def test_what_breaks_a_cell_off_is_its_reason_and_the_others_go_on():
    def breaks():
        raise TimeoutError("no process ended")

    told = matrix._tried(breaks, CELLS["opaque"], lambda _: None)
    assert (told.verdict, told.broken) == ("BROKEN", ["broken off: TimeoutError: no process ended"])


def test_a_worker_part_that_breaks_off_loses_nothing_of_the_rest(monkeypatch):
    def breaks(*_):
        raise OSError("no stack")

    monkeypatch.setattr(worker_matrix, "play", breaks)
    report = report_of(Row("read", "after_effect", kills=1), expected=[["read", "after_effect", "process"]])
    told = crash._through_the_worker(report, 1, lambda _: None)
    assert [(one.verdict, one.not_run) for one in told] == [
        ("not run", "the part through the worker broke off: OSError: no stack")
    ]


def test_only_writes_without_a_key_pass_the_points_around_the_mark():
    unexpected = {(cell.adapter.name, cell.point) for cell in adapters.cells() if not cell.is_expected}
    assert unexpected == {(name, point) for name in ("read", "keyed") for point in adapters.MARKS}


EVENTS = [
    {"sequence": 1, "event_id": "a", "type": "tool.started", "operation_id": "o"},
    {"sequence": 2, "event_id": "b", "type": "tool.failed", "operation_id": "o"},
]
CALL = {"id": "o", "state": "uncertain", "attempt": 1, "verdict": ""}


def seen(**more: object) -> worker_matrix.Seen:
    values = {"by_signal": True, "calls": [CALL], "events": EVENTS, "stored": EVENTS, "effects": 1}
    return worker_matrix.Seen(**{**values, **more})


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({}, []),
        ({"by_signal": False}, ["1 workers did not die by the kill"]),
        ({"effects": 2}, ["1 repeated effects"]),
        ({"stored": EVENTS[:1]}, ["1 lost events"]),
        ({"stored": [EVENTS[0], {**EVENTS[1], "event_id": "c"}]}, ["1 lost events"]),
        ({"events": EVENTS[:1]}, ["1 lost events"]),
        ({"calls": [{**CALL, "state": "succeeded"}]}, ["1 did not end as uncertain"]),
        ({"calls": [{**CALL, "state": "failed"}]}, ["1 operations unaccounted for", "1 did not end as uncertain"]),
        ({"calls": []}, ["1 operations unaccounted for"]),
        ({"calls": [CALL, {**CALL, "id": "p"}]}, ["2 lost events", "1 operations unaccounted for"]),
    ],
)
def test_what_the_real_worker_left_is_judged_by_all_that_can_be_seen(more, said):
    assert worker_matrix.judged(CELLS["opaque"], [seen(**more)]).broken == said


def test_a_machine_must_have_found_out_what_it_can():
    assert worker_matrix.judged(CELLS["keyed"], [seen()]).broken == ["1 did not end as succeeded"]
    done = [{**CALL, "state": "reconciled", "verdict": "occurred"}]
    assert worker_matrix.judged(CELLS["probed"], [seen(calls=done)]).broken == []


def test_every_fault_point_is_in_the_matrix_for_every_adapter():
    assert {cell.point for cell in adapters.cells()} == set(POINTS)
    assert len(list(adapters.cells())) == len(POINTS) * len(ADAPTERS)


def test_all_problems_of_a_report_are_told():
    broken = Row("opaque", "after_effect", kills=1, broken=["1 lost events"])
    report = report_of(broken, expected=[]) | {"verify": ["a_rule"]}
    assert crash.problems(report) == ["opaque at after_effect (process): 1 lost events", "verify: a_rule"]


def test_the_table_shows_no_zeros_where_nothing_was_killed():
    lines = list(table([Row("read", "before_sending_mark", expected=False).as_json()]))
    assert lines[-1].startswith("| read | before_sending_mark | process | not passed | 0 | – |")

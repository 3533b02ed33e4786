"""`manage.py drill` breaks what it says, on whole processes, and reports it in the agreed form."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DRILL_SECONDS_MAX = 240


def drill(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "manage.py", "drill", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=2 * DRILL_SECONDS_MAX, check=False)


@pytest.mark.timeout(DRILL_SECONDS_MAX + 20)
def test_a_killed_worker_and_a_lost_event_store_are_survived():
    done = drill("F8", "F9", "--json")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    rows = json.loads(done.stdout)["rows"]
    assert [(row["row"], row["held"]) for row in rows] == [("F8", True), ("F9", True)]
    assert all(row["asked"] and row["observed"] and row["seconds"] > 0 for row in rows)


@pytest.mark.timeout(2 * DRILL_SECONDS_MAX + 20)
def test_a_small_crash_matrix_holds_where_the_baseline_pays_twice():
    """One point, without the part through Temporal's worker: tests/acceptance/test_refund.py kills whole workers."""
    cells = ("--adapter", "opaque", "--adapter", "keyed", "--point", "after_effect")
    done = drill("--crash-matrix", "--kills", "2", "--worker-kills", "0", "--json", *cells)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    report = json.loads(done.stdout)
    rows = {(row["adapter"], row["carried_by"]): row for row in report["matrix"]}
    assert {key: row["kills"] for key, row in rows.items()} == {
        ("opaque", "process"): 2, ("keyed", "process"): 2,
    }  # fmt: skip
    for row in rows.values():
        assert (row["repeated_effects"], row["lost_events"], row["unaccounted"], row["broken"]) == (0, 0, 0, [])
        assert row["uncertain"] == (row["kills"] if row["adapter"] == "opaque" else 0)
    paid_twice = {row["fault_point"]: row["repeated_effects"] for row in report["baseline"]}
    assert paid_twice == {"before_the_effect": 0, "after_the_effect": 2}


def test_the_crash_matrix_wants_a_sensible_number_of_kills():
    done = drill("--crash-matrix", "--kills", "0")
    assert done.returncode != 0
    assert "1 to 1000" in done.stderr


def test_an_unknown_row_is_an_error_that_names_the_known_ones():
    done = drill("F13")
    assert done.returncode != 0
    assert "F13" in done.stderr
    assert "F1, F2" in done.stderr

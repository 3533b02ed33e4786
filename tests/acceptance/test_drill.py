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
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=DRILL_SECONDS_MAX, check=False)


@pytest.mark.timeout(DRILL_SECONDS_MAX + 20)
def test_a_killed_worker_and_a_lost_event_store_are_survived():
    done = drill("F8", "F9", "--json")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    rows = json.loads(done.stdout)["rows"]
    assert [(row["row"], row["held"]) for row in rows] == [("F8", True), ("F9", True)]
    assert all(row["asked"] and row["observed"] and row["seconds"] > 0 for row in rows)


def test_an_unknown_row_is_an_error_that_names_the_known_ones():
    done = drill("F13")
    assert done.returncode != 0
    assert "F13" in done.stderr
    assert "F1, F2" in done.stderr

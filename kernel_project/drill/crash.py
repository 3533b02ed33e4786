"""The whole crash matrix on stacks of its own: forked processes and the baseline on one, whole runs on another."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

from kernel_project.devstack.api_client import NotAsPromised
from kernel_project.devstack.layout import PROJECT_ROOT
from kernel_project.devstack.services import MANAGE, PYTHON
from kernel_project.devstack.stack import Stack, running
from kernel_project.drill.report import Row, table

SERVICES = ("postgres", "temporal", "temporality")
REASON_CHARS_MAX = 500
MATRIX_SECONDS_MAX = 4 * 3600.0

Json = dict[str, Any]
Say = Callable[[str], None]


def on_own_stacks(kills: int, worker_kills: int, words: Sequence[str], say: Say) -> Json:
    """The report of all parts; `words` are options that choose points and adapters."""
    with running(services=SERVICES) as stack:
        report = _in_its_environment(stack, kills, words)
    if worker_kills:
        say(f"the part by processes: {'; '.join(problems(report)) or 'all held'}")
        report["matrix"] += [row.as_json() for row in _through_the_worker(report, worker_kills, say)]
        report["expected"] += [[*place[:2], "worker"] for place in report["expected"]]
    return report


def _in_its_environment(stack: Stack, kills: int, words: Sequence[str]) -> Json:
    command = [PYTHON, MANAGE, "drill", "--crash-matrix", "--running", "--kills", str(kills), "--json", *words]
    done = subprocess.run(  # noqa: S603  our own program; its progress goes to our standard error
        command, env=stack.environment(), cwd=PROJECT_ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=sys.stderr, text=True, timeout=MATRIX_SECONDS_MAX, check=False,
    )  # fmt: skip
    try:
        report: Json = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        raise NotAsPromised(f"the crash matrix gave no report; its process ended with {done.returncode}") from None
    return report


def _through_the_worker(report: Json, kills: int, say: Say) -> list[Row]:
    """Whole runs of the cells in which a process could be killed; the others are told as not run."""
    from kernel_project.drill import worker_matrix

    killed = {(row["adapter"], row["fault_point"]) for row in report["matrix"] if row["kills"]}
    why = "no process was killed at this point, so no worker was tried"
    try:
        rows = worker_matrix.play(kills, say, killed) if killed else []
    except Exception as error:  # what the processes have shown is not lost with it
        rows, why = [], f"the part through the worker broke off: {type(error).__name__}: {error}"[:REASON_CHARS_MAX]
        say(why)
    played = {(row.adapter, row.fault_point) for row in rows}
    places = [(adapter, point) for adapter, point, _ in report["expected"]]
    left = [place for place in places if place not in played]
    return [*rows, *(Row(*place, carried_by="worker", not_run=why) for place in left)]


def on_this_stack(kills: int, say: Say, points: Sequence[str], adapters: Sequence[str]) -> Json:
    """The part that needs no worker, on the stack of the environment, whose database keeps the rows."""
    from kernel_project import verify
    from kernel_project.drill import adapters as cells
    from kernel_project.drill import matrix, naive

    rows = matrix.play(kills, say, points, adapters)
    broken = [check.id for check in verify.run() if not check.ok]
    baseline = naive.play(kills)
    for row in baseline:
        say(f"bare Temporal, {row['fault_point']}: {row['kills']} kills, {row['repeated_effects']} repeated effects")
    return {
        "kills": kills, "matrix": [row.as_json() for row in rows], "baseline": baseline, "verify": broken,
        "expected": [[c.adapter.name, c.point, "process"] for c in cells.cells(points, adapters) if c.is_expected],
    }  # fmt: skip


def problems(report: Json) -> list[str]:
    """What is not as it must be; empty when the promise holds."""
    rows = {(row["adapter"], row["fault_point"], row["carried_by"]): row for row in report["matrix"]}
    unplayed = {
        place: rows[place]["not_run"] if place in rows else "the cell is missing"
        for place in map(tuple, report["expected"])
        if place not in rows or (not rows[place]["broken"] and rows[place]["verdict"] != "held")
    }
    return [
        *(
            f"{row['adapter']} at {row['fault_point']} ({row['carried_by']}): {', '.join(row['broken'])}"
            for row in report["matrix"]
            if row["broken"]
        ),
        *(f"{place[0]} at {place[1]} ({place[2]}) was not run: {why}" for place, why in unplayed.items()),
        *(f"the baseline {row['fault_point']} was not run" for row in report["baseline"] if not row["kills"]),
        *(f"verify: {check}" for check in report["verify"]),
    ]


def text(report: Json) -> str:
    """The report as Markdown tables."""
    return "\n".join([*table(report["matrix"]), "", "Beside it, one bare Temporal activity with default retries:", "",
                      *table(report["baseline"])])  # fmt: skip

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
from kernel_project.drill.report import Row, table, unpassed

SERVICES = ("postgres", "temporal", "temporality")
MATRIX_SECONDS_MAX = 4 * 3600.0

Json = dict[str, Any]
Say = Callable[[str], None]


def on_own_stacks(kills: int, worker_kills: int, words: Sequence[str], say: Say) -> Json:
    """The report of all parts; `words` are options that choose points and adapters."""
    with running(services=SERVICES) as stack:
        report = _in_its_environment(stack, kills, words)
    if worker_kills:
        report["matrix"] += [row.as_json() for row in _through_the_worker(report, worker_kills, say)]
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
    from kernel_project.drill import worker_matrix

    return worker_matrix.play(
        kills, say, {(row["adapter"], row["fault_point"]) for row in report["matrix"] if row["kills"]}
    )


def on_this_stack(kills: int, say: Say, points: Sequence[str], adapters: Sequence[str]) -> Json:
    """The part that needs no worker, on the stack of the environment, whose database keeps the rows."""
    from kernel_project import verify
    from kernel_project.drill import matrix, naive

    rows = matrix.play(kills, say, points, adapters)
    broken = [check.id for check in verify.run() if not check.ok]
    baseline = naive.play(kills)
    for row in baseline:
        say(f"bare Temporal, {row['fault_point']}: {row['kills']} kills, {row['repeated_effects']} repeated effects")
    return {
        "kills": kills, "matrix": [row.as_json() for row in rows], "baseline": baseline, "verify": broken,
        "not_passed": unpassed(rows) if not adapters else [],
    }  # fmt: skip


def problems(report: Json) -> list[str]:
    """What is not as it must be; empty when the promise holds."""
    return [
        *(
            f"{row['adapter']} at {row['fault_point']}: {', '.join(row['broken'])}"
            for row in report["matrix"]
            if row["broken"]
        ),
        *(f"no call passes the fault point {point}" for point in report["not_passed"]),
        *(f"verify: {check}" for check in report["verify"]),
    ]


def text(report: Json) -> str:
    """The report as Markdown tables."""
    return "\n".join([*table(report["matrix"]), "", "Beside it, one bare Temporal activity with default retries:", "",
                      *table(report["baseline"])])  # fmt: skip

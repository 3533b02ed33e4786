"""The part of the crash matrix that goes through whole runs: each kill ends the real Temporal worker, and the next one
takes up what Temporal delivers again. Knows the kernel by its API only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from kernel_project.devstack.api_client import Json
from kernel_project.devstack.stack import running
from kernel_project.drill.adapters import MODULE, SANDBOX_LEDGER, Cell, cells, project
from kernel_project.drill.ledger_process import LedgerProcess
from kernel_project.drill.report import Row
from kernel_project.drill.scene import PROJECT, Scene

DEATH_SECONDS_MAX = 60.0
SETTLED_SECONDS_MAX = 120.0
ENDS = ("succeeded", "failed", "uncertain", "reconciled")
ALLOWED: list[Json] = [{"name": "the drill's writes", "tool": "*", "answer": "allow"}]


@dataclass(frozen=True)
class Killed:
    """One run whose worker died in its call."""

    cell: Cell
    run_id: str
    text: str
    died_at: float


def play(kills: int, say: Callable[[str], None], places: Collection[tuple[str, str]]) -> list[Row]:
    """So many kills at each (adapter, fault point), each of a worker of its own; judged when all calls have an end."""
    passed = [cell for cell in cells() if (cell.adapter.name, cell.point) in places]
    with ExitStack() as held:
        folder = Path(held.enter_context(TemporaryDirectory(prefix="agent-kernel-drill-")))
        ledger = held.enter_context(LedgerProcess(folder / "ledger"))
        known = {"KERNEL_SCRIPTS": str(folder), "KERNEL_TOOL_MODULES": MODULE, **ledger.environment()}
        stack = held.enter_context(running(extra_environment=known))
        scene = Scene(stack, folder, ledger, _file(passed), _scripts(passed))
        killed = [_kill(scene, cell, number, say) for number in range(kills) for cell in passed]
        scene.fresh_worker()
        seconds = [_seconds_to_the_end(scene, one) for one in killed]
        scene.client.until("the outbox to be empty", scene.no_lag, SETTLED_SECONDS_MAX)
        say(
            f"through the worker: {len(killed)} kills, the slowest call had its end {max(seconds):.1f} s after its kill"
        )
        return [_judge(scene, cell, [one for one in killed if one.cell == cell]) for cell in passed]


def _file(passed: Sequence[Cell]) -> Json:
    agents = [{"name": cell.tool, "model": f"scripted:{cell.tool}.yaml", "tools": [cell.tool]} for cell in passed]
    return {**project(PROJECT), "policies": ALLOWED, "agents": agents}


def _scripts(passed: Sequence[Cell]) -> dict[str, list[Json]]:
    """A model that makes one call, about what the run's input says."""
    call = [{"calls": [{"tool": cell.tool, "arguments": {"text": "{input}"}}]} for cell in passed]
    return {cell.tool: [turn, {"text": "done"}] for cell, turn in zip(passed, call, strict=True)}


def _kill(scene: Scene, cell: Cell, number: int, say: Callable[[str], None]) -> Killed:
    scene.armed_worker(cell.faults)
    text = f"{cell.tool}-{number}"
    run_id = scene.start(cell.tool, text)
    scene.client.until("the worker's death", lambda: not scene.stack.alive("worker"), DEATH_SECONDS_MAX)
    say(f"{text}: the worker was killed")
    return Killed(cell, run_id, text, time.monotonic())


def _seconds_to_the_end(scene: Scene, one: Killed) -> float:
    """From the kill until the call has an end, or until now if it had one before we looked."""

    def look() -> bool:
        return scene.operation(one.run_id, one.cell.tool).get("state") in ENDS

    scene.client.until(f"the end of the call {one.text}", look, SETTLED_SECONDS_MAX)
    return time.monotonic() - one.died_at


def _judge(scene: Scene, cell: Cell, killed: Sequence[Killed]) -> Row:
    row = Row(cell.adapter.name, cell.point, kills=len(killed), carried_by="worker")
    for one in killed:
        operation, events = scene.operation(one.run_id, cell.tool), scene.events(one.run_id)
        effects = _effects(scene, one)
        row.executions += effects
        row.repeated_effects += max(0, effects - 1) if cell.adapter.is_write else 0
        row.uncertain += operation["state"] == "uncertain"
        row.unaccounted += not _agree(operation["state"], effects)
        row.lost_events += abs(len(events) - len(scene.stored(one.run_id)))
        row.lost_events += [event["sequence"] for event in events] != list(range(1, len(events) + 1))
    row.broken = [
        f"{count} {name}"
        for name, count in (
            ("repeated effects", row.repeated_effects),
            ("lost events", row.lost_events),
            ("operations unaccounted for", row.unaccounted),
            ("uncertain that could be found out", 0 if cell.adapter.is_opaque else row.uncertain),
        )
        if count
    ]
    return row


def _effects(scene: Scene, one: Killed) -> int:
    own = scene.stack.layout.var / "workspaces" / PROJECT / one.run_id / SANDBOX_LEDGER
    return scene.booked(one.text) + (own.read_text().split().count(one.text) if own.exists() else 0)


def _agree(state: str, effects: int) -> bool:
    """Whether the call has an end that the ledger does not contradict."""
    return state == "uncertain" or (state == "succeeded" and effects > 0) or (state == "failed" and effects == 0)

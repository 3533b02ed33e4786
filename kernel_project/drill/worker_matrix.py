"""The part of the crash matrix that goes through whole runs: each kill ends the real Temporal worker, and the next one
takes up what Temporal delivers again. Knows the kernel by its API only.
"""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from kernel_project.devstack.api_client import Json, NotAsPromised
from kernel_project.devstack.process import Server
from kernel_project.devstack.stack import running
from kernel_project.drill.adapters import MODULE, SANDBOX_LEDGER, Cell, cells, project
from kernel_project.drill.ledger_process import LedgerProcess
from kernel_project.drill.report import Row
from kernel_project.drill.scene import PROJECT, Scene

DEATH_SECONDS_MAX = 60.0
SETTLED_SECONDS_MAX = 120.0
REASON_CHARS_MAX = 500
ALLOWED: list[Json] = [{"name": "the drill's writes", "tool": "*", "answer": "allow"}]


@dataclass(frozen=True)
class Killed:
    """One run whose worker died in its call."""

    cell: Cell
    run_id: str
    text: str
    died_at: float
    by_signal: bool


def play(kills: int, say: Callable[[str], None], places: Collection[tuple[str, str]]) -> list[Row]:
    """So many kills at each (adapter, fault point), each of a worker of its own; judged when all calls have an end."""
    passed = [cell for cell in cells() if (cell.adapter.name, cell.point) in places]
    with ExitStack() as held:
        folder = Path(held.enter_context(TemporaryDirectory(prefix="agent-kernel-drill-")))
        ledger = held.enter_context(LedgerProcess(folder / "ledger"))
        known = {"KERNEL_SCRIPTS": str(folder), "KERNEL_TOOL_MODULES": MODULE, **ledger.environment()}
        stack = held.enter_context(running(extra_environment=known))
        scene = Scene(stack, folder, ledger, _file(passed), _scripts(passed))
        killed: list[Killed] = []
        broken_off: dict[str, str] = {}
        for cell in passed * kills:
            try:
                killed.append(_kill(scene, stack["worker"], cell, len(killed), say))
            except Exception as error:
                broken_off[cell.tool] = f"{type(error).__name__}: {error}"[:REASON_CHARS_MAX]
                say(f"{cell.tool}: broken off: {broken_off[cell.tool]}")
        scene.fresh_worker()
        seconds = _settle(scene, killed)
        with suppress(NotAsPromised):  # what is missing over there is counted as lost
            scene.client.until("the outbox to be empty", scene.no_lag, SETTLED_SECONDS_MAX)
        if seconds:
            say(f"through the worker: {len(killed)} kills, the slowest call had its end after {max(seconds):.1f} s")
        rows = [_judge(scene, cell, [one for one in killed if one.cell == cell]) for cell in passed]
        for row, cell in zip(rows, passed, strict=True):
            row.broken += [f"broken off: {broken_off[cell.tool]}"] if cell.tool in broken_off else []
        return rows


def _file(passed: Sequence[Cell]) -> Json:
    agents = [{"name": cell.tool, "model": f"scripted:{cell.tool}.yaml", "tools": [cell.tool]} for cell in passed]
    return {**project(PROJECT), "policies": ALLOWED, "agents": agents}


def _scripts(passed: Sequence[Cell]) -> dict[str, list[Json]]:
    """A model that makes one call, about what the run's input says."""
    call = [{"calls": [{"tool": cell.tool, "arguments": {"text": "{input}"}}]} for cell in passed]
    return {cell.tool: [turn, {"text": "done"}] for cell, turn in zip(passed, call, strict=True)}


def _kill(scene: Scene, worker: Server, cell: Cell, number: int, say: Callable[[str], None]) -> Killed:
    scene.armed_worker(cell.faults)
    text = f"{cell.tool}-{number}"
    run_id = scene.start(cell.tool, text)
    scene.client.until("the worker's death", lambda: not scene.stack.alive("worker"), DEATH_SECONDS_MAX)
    say(f"{text}: the worker was killed")
    return Killed(cell, run_id, text, time.monotonic(), worker.return_code == -signal.SIGKILL)


def _settle(scene: Scene, killed: Sequence[Killed]) -> list[float]:
    """Wait until each call has the end that it must have, all within one time; the seconds from each kill till then.

    A call that does not come to it is left as it is, for the judge.
    """
    deadline, seconds = time.monotonic() + SETTLED_SECONDS_MAX, []
    for one in killed:

        def look(one: Killed = one) -> bool:
            return any(end(operation) == one.cell.ends_as for operation in _calls(scene, one))

        with suppress(NotAsPromised):
            scene.client.until(f"the end of {one.text}", look, max(0.0, deadline - time.monotonic()))
            seconds.append(time.monotonic() - one.died_at)
    return seconds


def _calls(scene: Scene, one: Killed) -> list[Json]:
    found = scene.client.items(f"/runs/{one.run_id}/operations")
    return [operation for operation in found if operation["name"] == one.cell.tool]


def _judge(scene: Scene, cell: Cell, killed: Sequence[Killed]) -> Row:
    """Compare what the API and the event store tell with what the ledger has counted."""
    return judged(
        cell,
        [
            Seen(one.by_signal, _calls(scene, one), scene.events(one.run_id), scene.stored(one.run_id), effects)
            for one in killed
            for effects in [_effects(scene, one)]
        ],
    )


@dataclass(frozen=True)
class Seen:
    """All that can be seen of one run whose worker died: its calls, their events here and there, and the effects."""

    by_signal: bool
    calls: list[Json]
    events: list[Json]
    stored: list[Json]
    effects: int


def judged(cell: Cell, all_seen: Sequence[Seen]) -> Row:
    """The row of a cell; what is not as it must be is told in words."""
    row = Row(cell.adapter.name, cell.point, carried_by="worker", expected=cell.is_expected)
    row.kills = sum(seen.by_signal for seen in all_seen)
    others = 0
    for seen in all_seen:
        row.executions += seen.effects
        row.repeated_effects += max(0, seen.effects - 1) if cell.adapter.is_write else 0
        row.uncertain += sum(operation["state"] == "uncertain" for operation in seen.calls)
        row.unaccounted += len(seen.calls) != 1 or not _agree(seen.calls[0], seen.effects)
        row.lost_events += lost_events(seen)
        others += any(end(operation) != cell.ends_as for operation in seen.calls)
    counts = {
        "workers did not die by the kill": len(all_seen) - row.kills,
        "repeated effects": row.repeated_effects,
        "lost events": row.lost_events,
        "operations unaccounted for": row.unaccounted,
        f"did not end as {cell.ends_as}": others,
    }
    row.broken = [f"{count} {what}" for what, count in counts.items() if count]
    row.not_run = "" if row.kills else "no worker was killed at this point"
    return row


def lost_events(seen: Seen) -> int:
    """Numbers that are missing, starts and ends of attempts that nobody told, and what is here and not there."""
    numbers, here = {event["sequence"] for event in seen.events}, [event["event_id"] for event in seen.events]
    lost = len(set(range(1, max(numbers, default=0) + 1)) ^ numbers) + len(here) - len(set(here))
    lost += len(Counter(here) - Counter(event["event_id"] for event in seen.stored))
    for operation in seen.calls:
        told = Counter(event["type"] for event in seen.events if event["operation_id"] == operation["id"])
        open_now = operation["state"] == "dispatched"
        lost += abs(operation["attempt"] - told["tool.started"])
        lost += abs(operation["attempt"] - open_now - told["tool.completed"] - told["tool.failed"])
    return lost


def end(operation: Json) -> str:
    """Where a call stands; one that a probe found has had its effect."""
    found = operation["state"] == "reconciled" and operation["verdict"] == "occurred"
    return "succeeded" if found else str(operation["state"])


def _effects(scene: Scene, one: Killed) -> int:
    own = scene.stack.layout.var / "workspaces" / PROJECT / one.run_id / SANDBOX_LEDGER
    return scene.booked(one.text) + (own.read_text().split().count(one.text) if own.exists() else 0)


def _agree(operation: Json, effects: int) -> bool:
    """Whether the call has an end that the ledger does not contradict."""
    match end(operation):
        case "succeeded":
            return effects > 0
        case "failed" | "reconciled":
            return effects == 0
    return bool(operation["state"] == "uncertain")

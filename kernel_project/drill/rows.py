"""The twelve rows of the failure table: what each asks, and who breaks it and looks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx2

from kernel_project.devstack.api_client import NotAsPromised
from kernel_project.devstack.errors import DevstackError
from kernel_project.devstack.stack import running
from kernel_project.drill import calls, outages, people, project
from kernel_project.drill.ledger_process import LedgerProcess
from kernel_project.drill.scene import Scene
from kernel_project.drill.tools import MODULE


@dataclass(frozen=True)
class Row:
    """One row: `act` breaks something and yields (what was looked at, whether it is as asked)."""

    name: str
    asked: str
    act: Callable[[Scene], Iterator[tuple[str, bool]]]


@dataclass(frozen=True)
class Told:
    """What became of one row."""

    row: str
    asked: str
    held: bool
    seen: list[str]
    seconds: float

    def as_json(self) -> dict[str, Any]:
        return {
            "row": self.row, "held": self.held, "asked": self.asked, "observed": "; ".join(self.seen),
            "seconds": self.seconds,
        }  # fmt: skip


ROWS = (
    Row("F1", "bounded retry of a provider error, then another turn; started and failed events, no prompt", calls.f1),
    Row("F2", "one attempt, a classified outcome, no repeat before reconciliation; no arguments in events", calls.f2),
    Row(
        "F3",
        "cancellation stops a command; a fresh sandbox only when it is replay-safe; lifecycle events, log kept",
        calls.f3,
    ),
    Row("F4", "Temporal replays and redelivers; events are deduplicated by id", outages.f4),
    Row("F5", "reject new starts; no claim of durable progress", outages.f5),
    Row("F6", "the store is away before a read: fail closed", outages.f6),
    Row("F7", "the store is away before a write: stop before the effect", outages.f7),
    Row("F8", "crash after the write: do not rerun, probe or mark uncertain, reconcile", calls.f8),
    Row("F9", "the outbox keeps events and retries; lag is shown", outages.f9),
    Row("F10", "duplicate delivery: no-op when equal, conflict when not", outages.f10),
    Row("F11", "a granted, rejected or unanswered request ends as declared, with its events", people.f11),
    Row("F12", "cancel cooperatively; nothing is undone, partial execution stays visible", people.f12),
)


def play(rows: Sequence[Row]) -> Iterator[Told]:
    """Play these rows, one after the other, on one stack of their own."""
    with ExitStack() as held:
        folder = Path(held.enter_context(TemporaryDirectory(prefix="agent-kernel-drill-")))
        ledger = held.enter_context(LedgerProcess(folder / "ledger"))
        known = {"KERNEL_SCRIPTS": str(folder), "KERNEL_TOOL_MODULES": MODULE, **ledger.environment()}
        stack = held.enter_context(running(extra_environment=known))
        scene = Scene(stack, folder, ledger, project.file(), project.AGENTS)
        for row in rows:
            yield observe(row, scene)


def observe(row: Row, scene: Scene) -> Told:
    """Play one row. A row that cannot be played to its end is broken."""
    began, seen, held = time.monotonic(), [], True
    try:
        for what, as_asked in row.act(scene):
            seen.append(what if as_asked else f"NOT AS ASKED: {what}")
            held &= as_asked
    except (NotAsPromised, DevstackError, httpx2.HTTPError) as error:
        seen.append(f"NOT AS ASKED: {error or type(error).__name__}")
        held = False
    return Told(row.name, row.asked, held, seen, round(time.monotonic() - began, 1))

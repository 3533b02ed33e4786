"""The twelve rows of the failure table: what each asks, and who breaks it and looks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from kernel_project.devstack.control import ControlledStack
from kernel_project.devstack.errors import DevstackError
from kernel_project.devstack.layout import Layout
from kernel_project.devstack.stack import running
from kernel_project.drill import calls, outages, people, project
from kernel_project.drill.ledger_process import LedgerProcess
from kernel_project.drill.provider import SlowProvider
from kernel_project.drill.scene import PROJECT, Scene, Stage
from kernel_project.drill.tools import MODULE

ALWAYS = frozenset({"web", "worker", "celery", "beat"})  # what every row plays on
LOADERS = ("worker", "celery")  # processes that call tools, and must know the drill's
SEPARATORS = {"KERNEL_SCRIPTS": ":", "KERNEL_TOOL_MODULES": ","}  # of variables that may name more than the drill's
REASON_CHARS_MAX = 500


@dataclass(frozen=True)
class Row:
    """One row: `act` breaks something and yields (what was looked at, whether it is as asked).

    `needs` are the parts of the stack that it takes away or asks, beside those that every row plays on.
    """

    name: str
    asked: str
    act: Callable[[Scene], Iterator[tuple[str, bool]]]
    needs: frozenset[str] = frozenset()
    hindrance: Callable[[], str] = str  # why this machine cannot play it; empty if it can


def no_sandbox() -> str:
    from runs.boundary.sandbox import drivers

    unavailable = drivers.chosen().capabilities().unavailable
    return f"this machine has no sandbox: {unavailable}" if unavailable else ""


@dataclass(frozen=True)
class Told:
    """What became of one row. One that was not played, for the reason given, has not held."""

    row: str
    asked: str
    held: bool
    seen: list[str] = field(default_factory=list)
    seconds: float = 0.0
    not_run: str = ""

    @property
    def word(self) -> str:
        return "not run" if self.not_run else "held" if self.held else "BROKEN"

    def as_json(self) -> dict[str, Any]:
        observed = f"not run: {self.not_run}" if self.not_run else "; ".join(self.seen)
        return {
            "row": self.row, "held": self.held, "asked": self.asked, "observed": observed, "seconds": self.seconds,
            "not_run": self.not_run,
        }  # fmt: skip


ROWS = (
    Row("F1", "bounded retry of a provider error, then another turn; started and failed events, no prompt", calls.f1),
    Row("F2", "one attempt, a classified outcome, no repeat before reconciliation; no arguments in events", calls.f2),
    Row(
        "F3",
        "cancellation stops a command; a fresh sandbox only when it is replay-safe; lifecycle events, log kept",
        calls.f3,
        hindrance=no_sandbox,
    ),
    Row(
        "F4",
        "Temporal replays and redelivers; events are deduplicated by id",
        outages.f4,
        frozenset({"temporality"}),
    ),
    Row("F5", "reject new starts; no claim of durable progress", outages.f5, frozenset({"temporal"})),
    Row("F6", "the store is away before a read: fail closed", outages.f6, frozenset({"postgres"})),
    Row("F7", "the store is away before a write: stop before the effect", outages.f7, frozenset({"postgres"})),
    Row("F8", "crash after the write: do not rerun, probe or mark uncertain, reconcile", calls.f8),
    Row("F9", "the outbox keeps events and retries; lag is shown", outages.f9, frozenset({"temporality"})),
    Row(
        "F10",
        "duplicate delivery: no-op when equal, conflict when not",
        outages.f10,
        frozenset({"temporality"}),
    ),
    Row(
        "F11",
        "a granted, rejected or unanswered request ends as declared, with its events; a decision survives outages",
        people.f11,
        frozenset({"temporal"}),
    ),
    Row("F12", "cancel cooperatively; nothing is undone, partial execution stays visible", people.f12),
)


def play(rows: Sequence[Row], *, on_running: bool = False) -> Iterator[Told]:
    """Play these rows, one after the other, on one stack of their own, or on the one that `manage.py up` runs.

    A running stack gets back all that was taken away. Raises DevstackError or NotAsPromised if there is no stage.
    """
    with ExitStack() as held:
        folder = Path(held.enter_context(TemporaryDirectory(prefix="agent-kernel-drill-")))
        ledger = held.enter_context(LedgerProcess(folder / "ledger"))
        provider = held.enter_context(SlowProvider(project.LATE_ANSWERS))
        known = {"KERNEL_SCRIPTS": str(folder), "KERNEL_TOOL_MODULES": MODULE, **ledger.environment()}
        if not on_running:
            stage: Stage = held.enter_context(running(extra_environment=known))
        else:
            try:
                stage = held.enter_context(closing(ControlledStack(Layout.from_environment().var)))
            except DevstackError as error:
                yield from (not_run(row, str(error)) for row in rows)
                return
        able = [row for row in rows if not missing(row, stage)]
        if able and on_running:
            lend(stage, known)
        # What an earlier drill left on a running stack is not in the way of this one.
        name = f"{PROJECT}-{int(time.time())}" if on_running else PROJECT
        scene = Scene(stage, folder, ledger, project.file(provider.url), project.AGENTS, name) if able else None
        for row in rows:
            yield observe(row, scene) if scene and row in able else not_run(row, missing(row, stage))


def missing(row: Row, stage: Stage) -> str:
    """Why a row cannot be played on this stage; empty if it can."""
    names = sorted((ALWAYS | row.needs) - set(stage.services))
    if names:
        return f"the stack did not start {', '.join(names)} itself, and the drill breaks nothing of others"
    return row.hindrance()


def not_run(row: Row, why: str) -> Told:
    return Told(row.name, row.asked, held=False, not_run=why)


def lend(stage: Stage, known: Mapping[str, str]) -> None:
    """Let the processes of a running stack know the drill's tools and models, beside those that they know."""
    given = stage.environment()
    for name, value in known.items():
        has = given.get(name) if name in SEPARATORS else ""
        stage.set_variable(name, f"{has}{SEPARATORS[name]}{value}" if has else value)
    for name in LOADERS:
        stage.restart(name)


def observe(row: Row, scene: Scene) -> Told:
    """Play one row, and bring back what it took away. One that cannot be played to its end is broken."""
    began, seen, held = time.monotonic(), [], True
    try:
        for what, as_asked in row.act(scene):
            seen.append(what if as_asked else f"NOT AS ASKED: {what}")
            held &= as_asked
    except Exception as error:
        seen.append(f"BROKEN OFF: {reason(error)}")
        held = False
    try:
        scene.mend()
    except Exception as error:
        seen.append(f"NOT MENDED: {reason(error)}")
        held = False
    return Told(row.name, row.asked, held, seen, round(time.monotonic() - began, 1))


def reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:REASON_CHARS_MAX]

"""The tools of the crash matrix: one for each way of declaring an effect and each fault point. Their other side is the
ledger, which counts; a tool's name says where its calls are killed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from kernel_project.drill.ledger_process import LedgerClient
from runs.boundary.contracts import Dispatch, ProbeAnswer, ProbeVerdict
from runs.boundary.effects.python import register
from runs.boundary.fault_points import Point

MODULE = __name__
POINTS: tuple[Point, ...] = get_args(Point)
MARKS: tuple[Point, ...] = ("before_sending_mark", "after_sending_mark")
# Where a killed write may have left and its outcome is not written.
MAY_HAVE_LEFT: tuple[Point, ...] = ("after_sending_mark", "before_send", "after_effect", "before_settle")
KEY_SECONDS = 24 * 3600
PROBED_TIMEOUT_SECONDS = 3  # a probe's "not there" is believed once the call can no longer be under way
SANDBOX_LEDGER = "ledger"  # in the workspace: the command is a process of its own, and the only one that writes it
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"text": {"type": "string"}},
    "required": ["text"],
    "additionalProperties": False,
}


@dataclass(frozen=True)
class Adapter:
    """One way of declaring an effect, and what must come of a call that was killed when it may have acted."""

    name: str
    declared: dict[str, Any]
    mode: str = "opaque"  # of the ledger
    is_opaque: bool = False  # nobody can find out by machine: it must end uncertain

    @property
    def is_write(self) -> bool:
        return bool(self.declared["effect"] == "write")

    @property
    def marks_sending(self) -> bool:
        """Whether its calls commit a mark before they send, and so pass the points around it."""
        return self.is_write and "idempotent_for_seconds" not in self.declared


ADAPTERS = (
    Adapter("read", {"effect": "read"}),
    Adapter("keyed", {"effect": "write", "idempotent_for_seconds": KEY_SECONDS}, mode="keyed"),
    Adapter("probed", {"effect": "write", "timeout_seconds": PROBED_TIMEOUT_SECONDS}),
    Adapter("opaque", {"effect": "write"}, is_opaque=True),  # by default a person is asked first
    Adapter("sandbox", {"effect": "write"}, is_opaque=True),
)
_ledger = LedgerClient()


@dataclass(frozen=True)
class Cell:
    """One tool: an adapter, and the point at which its calls are killed."""

    adapter: Adapter
    point: Point

    @property
    def tool(self) -> str:
        return f"{self.adapter.name}-{self.point}"

    @property
    def is_expected(self) -> bool:
        """Whether calls of this kind pass this point."""
        return self.adapter.marks_sending or self.point not in MARKS

    @property
    def ends_as(self) -> str:
        """How each call must end: as uncertain where nobody can know by machine, else with its one effect."""
        return "uncertain" if self.adapter.is_opaque and self.point in MAY_HAVE_LEFT else "succeeded"

    @property
    def faults(self) -> str:
        """What kills its first call in a process."""
        return f"{self.point}:{self.tool}#1=kill"


def cells(points: Sequence[str] = (), names: Sequence[str] = ()) -> Iterator[Cell]:
    """The matrix: of these points and kinds of adapter, or of all where none is named."""
    for adapter in ADAPTERS:
        for point in POINTS:
            if point in (points or POINTS) and adapter.name in (names or (adapter.name,)):
                yield Cell(adapter, point)


def project(name: str) -> dict[str, Any]:
    """The project file's tools and policies: opaque writes are left to the kernel's default, which asks a person."""
    return {
        "project": name,
        "tools": [_entry(cell) for cell in cells()],
        "policies": [{"name": "commands", "tool": "sandbox-*", "answer": "allow"}],
        "agents": [],
    }


def _entry(cell: Cell) -> dict[str, Any]:
    if cell.adapter.name != "sandbox":
        return {"kind": "python", "module": MODULE, "function": cell.tool}
    script = f'printf "%s\\n" "$1" >> {SANDBOX_LEDGER} && sync {SANDBOX_LEDGER}'
    return {
        "kind": "sandbox",
        "name": cell.tool,
        "description": "Append a line to the workspace's ledger.",
        "input_schema": SCHEMA,
        "configuration": {"argv": ["/bin/sh", "-c", script, "sh", "{text}"], "accept_missing": ["tree_limits"]},
        **cell.adapter.declared,
    }


def _books(adapter: Adapter) -> Callable[..., str]:
    def book(dispatch: Dispatch, text: str) -> str:
        """Book one line in the ledger."""
        return _ledger.book(adapter.mode, text, dispatch.idempotency_key)

    return book


def _probe(dispatch: Dispatch) -> ProbeAnswer:
    """Ask the ledger for the key."""
    count = _ledger.found(dispatch.idempotency_key)
    verdicts = {0: ProbeVerdict.ABSENT, 1: ProbeVerdict.ONE}
    return ProbeAnswer(verdict=verdicts.get(count, ProbeVerdict.MANY), detail=f"the ledger has it {count} times")


for _cell in cells():
    if _cell.adapter.name != "sandbox":
        register(
            _cell.tool,
            input_schema=SCHEMA,
            probe=_probe if _cell.adapter.name == "probed" else None,
            configuration={"absent_after_seconds": 0} if _cell.adapter.name == "probed" else {},
            **_cell.adapter.declared,
        )(_books(_cell.adapter))

"""What a drill reports, and how it is shown. Measures and judges nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

COLUMNS = ("adapter", "fault_point", "carried_by", "kills", "executions", "repeated_effects", "lost_events",
           "lost_approvals", "unaccounted", "uncertain")  # fmt: skip


@dataclass
class Row:
    """What one cell of the crash matrix came to. `broken` says in words what is not as it must be.

    `carried_by` is `process` for a process forked for one call, `worker` for the real Temporal worker. Of a read
    `executions` counts, and a second one is no repeated effect. `uncertain` are calls that a person must look at, which
    is right for those that nothing but a person can find out about.
    """

    adapter: str
    fault_point: str
    kills: int = 0
    repeated_effects: int = 0
    lost_events: int = 0
    unaccounted: int = 0
    uncertain: int = 0
    executions: int = 0
    lost_approvals: int = 0
    seconds: float = 0.0
    carried_by: str = "process"
    broken: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return dict(vars(self))


def unpassed(rows: Sequence[Row]) -> list[str]:
    """Fault points of these rows at which nothing was killed: no call passes them any more."""
    return sorted({row.fault_point for row in rows} - {row.fault_point for row in rows if row.kills})


def table(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The rows as lines of Markdown; a cell whose point its calls do not pass has dashes."""
    yield "| " + " | ".join(name.replace("_", " ") for name in COLUMNS) + " |"
    yield "|" + "---|" * len(COLUMNS)
    for row in rows:
        shown = [str(row.get(name, "")) if row["kills"] or index < 4 else "–" for index, name in enumerate(COLUMNS)]
        yield "| " + " | ".join(shown) + " |"

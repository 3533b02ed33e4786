"""What a drill reports, and how it is shown. Measures and judges nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

COLUMNS = ("adapter", "fault_point", "carried_by", "verdict", "kills", "executions", "repeated_effects", "lost_events",
           "lost_approvals", "unaccounted", "uncertain")  # fmt: skip
COLUMNS_OF_THE_CELL = 5  # they are known of a cell in which nothing was killed, too


@dataclass
class Row:
    """What one cell of the crash matrix came to. `broken` says in words what is not as it must be.

    `expected`: calls of this kind pass the point. Such a cell in which nothing was killed has not held: `not_run` says
    why.

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
    expected: bool = True
    not_run: str = ""
    broken: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        if self.broken:
            return "BROKEN"
        if not self.kills:
            return "not run" if self.expected else "not passed"
        return "not run" if self.not_run else "held"

    def as_json(self) -> dict[str, Any]:
        return {**vars(self), "verdict": self.verdict}


def table(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The rows as lines of Markdown; a cell whose point its calls do not pass has dashes."""
    yield "| " + " | ".join(name.replace("_", " ") for name in COLUMNS) + " |"
    yield "|" + "---|" * len(COLUMNS)
    for row in rows:
        known = len(COLUMNS) if row["kills"] else COLUMNS_OF_THE_CELL
        shown = [str(row.get(name, "")) if index < known else "–" for index, name in enumerate(COLUMNS)]
        yield "| " + " | ".join(shown) + " |"

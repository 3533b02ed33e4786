"""What every benchmark reports, and where each one stands. Measures nothing itself."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

# Bringing a stack up is another module's business, which loads much: its own word for all of it is compared by a test.
ALL = ("postgres", "valkey", "temporal", "temporality", "web", "worker", "celery", "publisher", "beat")
MEMINFO = Path("/proc/meminfo")
CPUINFO = Path("/proc/cpuinfo")


@dataclass(frozen=True)
class Figure:
    """One measured number. `at_least` and `at_most` are its bar; `beside` holds the same of a peer or a limit, measured
    in the same run, because machines are noisy and ratios are not. `absent` says why a peer has no number, and `about`
    what was measured where the name does not.
    """

    name: str
    value: float
    unit: str
    at_least: float | None = None
    at_most: float | None = None
    beside: dict[str, float] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    about: str = ""

    @property
    def ok(self) -> bool:
        above = self.at_least is None or self.value >= self.at_least
        return above and (self.at_most is None or self.value <= self.at_most)

    @property
    def bar(self) -> str:
        if self.at_least is not None:
            return f">= {self.at_least:g}"
        return f"<= {self.at_most:g}" if self.at_most is not None else ""

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name, "value": round(self.value, 3), "unit": self.unit, "bar": self.bar, "ok": self.ok,
            "beside": {name: round(value, 3) for name, value in self.beside.items()}, "absent": self.absent,
            "about": self.about,
        }  # fmt: skip


@dataclass(frozen=True)
class Bench:
    """Where a benchmark is, and which parts of the stack it needs."""

    function: str  # module:function, which takes nothing, or the number of rows, and returns figures
    services: Collection[str]
    help: str
    has_size: bool = False

    def load(self) -> Callable[..., list[Figure]]:
        module, _, name = self.function.partition(":")
        loaded: Callable[..., list[Figure]] = getattr(import_module(module), name)
        return loaded


BENCHES = {
    "append": Bench("outbox.bench:append", ("postgres",), "events appended by 1 and by 8 writers"),
    "publish": Bench(
        "outbox.bench:publish", ("postgres", "temporality"), "events published, to nowhere and to our event store"
    ),
    "latency": Bench("outbox.bench:latency", ("postgres", "temporality"), "commit to acknowledged at 200 events/s"),
    "runs": Bench("runs.bench:runs", ("postgres", "temporal"), "runs beside bare Temporal workflows"),
    "long": Bench("runs.bench_long:long", ("postgres", "temporal"), "a run of 1,000 calls and a 20 MB result"),
    "decision": Bench("runs.bench_decisions:decision", ("postgres", "temporal"), "from a person's yes to the dispatch"),
    "backlog": Bench("outbox.bench:backlog", ("postgres",), "claims over a big journal and under a held snapshot"),
    "operations": Bench("runs.boundary.bench:bench_operations", ("postgres",), "what intent and outcome cost a call"),
    "start_api": Bench("runs.bench_api:start_api", ALL, "runs started over HTTP at 10/s, with the stack running"),
    "api": Bench("runs.bench_api:api", ALL, "reads over HTTP, and 500 who follow runs on one web process"),
    "purge": Bench("runs.keeping.bench:purge", ("postgres", "valkey"), "old runs go, the API is read", has_size=True),
    "ingest": Bench("temporality.bench:bench_ingest", ("postgres", "temporality"), "events taken in over HTTP"),
    "admin": Bench(
        "kernel_project.bench_admin:admin",
        ("postgres", "temporality"),
        "the console's pages over millions of rows",
        has_size=True,
    ),
    "rebuild": Bench(
        "temporality.bench:bench_rebuild", ("postgres", "temporality"), "the projection, made anew", has_size=True
    ),
}


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    cpu = next((line.partition(":")[2].strip() for line in _lines(CPUINFO) if line.startswith("model name")), "")
    memory = next((int(line.split()[1]) // 1024 for line in _lines(MEMINFO) if line.startswith("MemTotal")), 0)
    return {
        "cores": os.cpu_count(), "cpu": cpu, "memory_mib": memory, "python": platform.python_version(),
        "system": platform.platform(), "load_1_minute": round(os.getloadavg()[0], 2),
    }  # fmt: skip


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []

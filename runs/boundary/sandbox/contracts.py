"""What a sandboxed command is asked to be, what came of it, and what this machine can enforce. Imports no framework."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any, Literal, get_args

from runs.boundary.sandbox.output import readable

MEBIBYTE = 1024 * 1024

# tree_limits: memory and processes are limited for the whole tree, not for each process alone (needs a cgroup).
Demand = Literal["tree_limits"]
DEMANDS: frozenset[Demand] = frozenset(get_args(Demand))
DriverName = Literal["bubblewrap", "docker"]


@dataclass(frozen=True)
class SandboxLimits:
    """How much one command may use. Every limit is enforced from outside; reaching one never stops the kernel."""

    wall_seconds: float = 60.0  # a person waits for it; a model that needs longer says so in the tool's configuration
    cpu_seconds: int = 120  # per process (RLIMIT_CPU): stops a busy loop that outlives everything else
    cpu_cores: float = 1.0  # a share of the machine for the whole tree, so that the worker keeps breathing
    memory_bytes: int = 512 * MEBIBYTE  # the whole tree with its /tmp and page cache where a cgroup is at hand
    processes_max: int = 128  # the whole tree, threads included: a compiler runs, a fork bomb does not
    file_bytes_max: int = 256 * MEBIBYTE  # each file (RLIMIT_FSIZE)
    open_files_max: int = 1024  # the usual soft limit of a Linux login
    temporary_bytes_max: int = 64 * MEBIBYTE  # /tmp and /dev/shm each; they live in memory
    output_bytes_max: int = 256 * 1024  # kept of stdout and of stderr each; the rest is counted and left out
    stdin_bytes_max: int = 4 * MEBIBYTE  # a script or a document, not a data set: those belong into the workspace
    disk_free_bytes_min: int = 256 * MEBIBYTE  # the workspace's file system: a command that goes below it is ended

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            right_type = isinstance(value, (int, float) if item.type == "float" else int) and value is not True
            if not right_type or not 0 < value < 2**53:
                raise ValueError(f"limit {item.name} must be a positive {item.type}, not {value!r}")

    def with_wall_seconds(self, wall_seconds: float) -> SandboxLimits:
        return replace(self, wall_seconds=wall_seconds)


@dataclass(frozen=True)
class SandboxCommand:
    """One command. `argv[0]` is looked up in the sandbox's PATH; nothing of it is ever read by a shell of ours.

    `workspace_root` is the folder that the workspace must lie in. `protected_names` are entries, anywhere in the
    workspace, that the command can read but not change or create: programs outside act on what stands in them.
    `demands` is what the machine must be able to enforce; a machine that cannot refuses the command. `image` and
    `source` (whose container it is) are for the docker driver.
    """

    argv: tuple[str, ...]
    workspace: str
    workspace_root: str
    operation_id: str
    environment: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    stdin: bytes = b""
    limits: SandboxLimits = field(default_factory=SandboxLimits)
    protected_names: tuple[str, ...] = (".git",)
    demands: frozenset[Demand] = DEMANDS
    attempt: int = 1
    image: str = ""
    source: str = ""


@dataclass(frozen=True)
class SandboxResult:
    """What is known when nothing of the command runs any more. `exit_code` is None when we ended it ourselves.

    A command that died of signal N has exit code 128 + N. `stdout` and `stderr` are head, a line that says how much was
    left out, and tail, when `truncated`.
    """

    exit_code: int | None
    stdout: bytes
    stderr: bytes
    stdout_bytes_total: int
    stderr_bytes_total: int
    truncated: bool
    timed_out: bool
    out_of_memory: bool
    disk_low: bool
    seconds: float
    peak_memory_bytes: int | None
    notes: tuple[str, ...] = ()

    def log(self) -> str:
        """What the command said, as text."""
        sections = [
            f"--- stdout, {self.stdout_bytes_total} bytes",
            readable(self.stdout),
            f"--- stderr, {self.stderr_bytes_total} bytes",
            readable(self.stderr),
            *(f"--- note: {note}" for note in self.notes),
        ]
        return "\n".join(section for section in sections if section)


class SandboxCrashed(Exception):
    """The sandbox itself ended while the command ran: what the command did is not known. `result` holds its output."""

    def __init__(self, message: str, result: SandboxResult) -> None:
        super().__init__(message)
        self.result = result


@dataclass(frozen=True)
class Left:
    """What is left of an operation's sandbox when somebody looks for it later.

    gone: there is nothing that could be asked, which proves nothing. never_started: it was made, nothing ran in it, and
    nothing will. killed: it was ended from outside; what it had done by then is not known. `result` is there for ended.
    """

    state: Literal["gone", "never_started", "running", "killed", "ended"]
    result: SandboxResult | None = None


@dataclass(frozen=True)
class Capabilities:
    """What this machine can enforce, found by trying. `problems` are sentences that end with what to do.

    `unavailable` is empty when a sandbox has really been started here; otherwise no command is run at all.
    """

    driver: DriverName
    unavailable: str
    program: str  # the path of bwrap, or of the engine's command line
    version: str
    user_namespaces: bool
    seccomp: bool
    cgroup: Literal["v2", "v1", "engine", "none"]  # engine: the container engine limits the whole tree
    uid_pool: tuple[int, int] | None  # first and last, when commands get a uid of their own
    problems: tuple[str, ...]
    image: str = ""

    @property
    def met(self) -> frozenset[Demand]:
        return DEMANDS if self.cgroup != "none" else frozenset()

    def as_dict(self) -> dict[str, Any]:
        return {item.name: getattr(self, item.name) for item in fields(self)}

    def sentence(self) -> str:
        """One line for a person."""
        image = f", image {self.image}" if self.image else ""
        limits = {"none": "limits for each process alone", "engine": "limits by the engine"}
        engine = f"docker driver, {PurePosixPath(self.program).name}" if self.driver == "docker" else self.driver
        return f"{engine} {self.version}{image}, {limits.get(self.cgroup, f'cgroup {self.cgroup}')}"

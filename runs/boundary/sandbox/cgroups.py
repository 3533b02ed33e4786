"""Limits for a whole process tree, and its end, by cgroup v2 or v1. Finds out what is writable; never assumes it."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, Literal

from runs.boundary.sandbox.contracts import SandboxLimits

NAME_PREFIX = "agent-kernel-sandbox."
CPU_PERIOD_MICROSECONDS = 100_000  # the kernel's default
SANDBOX_PROCESSES = 3  # the sandbox's own, on top of the command's: bwrap outside and inside, and one in the making
V1_CONTROLLERS: Final = ("memory", "pids", "cpu")
SWEEP_DEPTH_MAX = 8  # levels below a mount point where a worker's own cgroup may lie


@dataclass(frozen=True)
class Hierarchy:
    """Where sandboxes get their cgroups: one parent per controller (v1) or one for all (v2)."""

    mode: Literal["v2", "v1", "none"]
    parents: Mapping[str, Path]
    mounts: tuple[Path, ...]


@dataclass(frozen=True)
class Mount:
    point: Path
    root: str
    kind: str
    controllers: frozenset[str]


def worker_identity(pid: int) -> str:
    """A process, its start (pids are used again) and its pid namespace. Empty when it is gone, or a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if stat[0] in "ZX" else f"{pid}.{stat[19]}.{pid_namespace()}"


@cache
def pid_namespace() -> str:
    """The number of our pid namespace: a pid means something in there alone."""
    return os.readlink("/proc/self/ns/pid").strip("pid:[]")  # noqa: PTH115  a link to no path


def is_alive(worker: str) -> bool:
    """Whether the process with that identity lives. In another pid namespace we cannot see it: it counts as alive."""
    pid, _, namespace = worker.split(".")
    return namespace != pid_namespace() or worker_identity(int(pid)) == worker


@cache
def hierarchy() -> Hierarchy:
    """v2 where its controllers can be handed on to a child, else v1, else none. Tried with a real child."""
    mounts, own = _mounts(), _own_paths()
    unified = [mount for mount in mounts if mount.kind == "cgroup2"]
    for mount in unified:
        for parent in _v2_parents(mount, own.get("", "/")):
            if _hands_on(parent) and _takes_children(parent):
                return Hierarchy("v2", {"all": parent}, (mount.point,))
    parents: dict[str, Path] = {}
    for name in V1_CONTROLLERS:
        for mount in mounts:
            if name in mount.controllers and _takes_children(parent := _below(mount, own.get(name, "/"))):
                parents[name] = parent
    if set(parents) == set(V1_CONTROLLERS):
        return Hierarchy("v1", parents, tuple(m.point for m in mounts if m.controllers & set(V1_CONTROLLERS)))
    return Hierarchy("none", {}, ())


def _mounts() -> list[Mount]:
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.split(" ", 2)
        if kind in ("cgroup", "cgroup2"):
            root, point = left.split(" ")[3:5]
            controllers = frozenset(options.split(",")) if kind == "cgroup" else frozenset()
            found.append(Mount(Path(point), root, kind, controllers))
    return found


def _own_paths() -> dict[str, str]:
    """Our cgroup by controller; the empty name is v2's."""
    paths = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        paths.update(dict.fromkeys(names.split(","), path))
    return paths


def _below(mount: Mount, own: str) -> Path:
    """Our own cgroup as a folder, so that limits set on the worker go on holding for its sandboxes."""
    relative = os.path.relpath(own, mount.root)
    inside = mount.point / relative
    return inside if not relative.startswith("..") and inside.is_dir() else mount.point


def _v2_parents(mount: Mount, own: str) -> Iterator[Path]:
    """A v2 cgroup with processes hands on no controllers, except the root: a sandbox is the worker's sibling."""
    inside = _below(mount, own)
    yield inside
    if inside != mount.point:
        yield inside.parent


def _hands_on(parent: Path) -> bool:
    control = parent / "cgroup.subtree_control"
    with contextlib.suppress(OSError):
        control.write_text("+memory +pids +cpu")
    try:
        return {"memory", "pids", "cpu"} <= set(control.read_text().split())
    except OSError:
        return False


def _takes_children(parent: Path) -> bool:
    trial = parent / f"{NAME_PREFIX}trial-{secrets.token_hex(4)}"
    try:
        trial.mkdir()
        trial.rmdir()
    except OSError:
        return False
    return os.access(parent / "cgroup.procs", os.W_OK)


class Cgroup:
    """The cgroup of one sandbox. A process joins by writing 0 to each of `process_files`."""

    def __init__(self, mode: Literal["v2", "v1"], folders: Mapping[str, Path]) -> None:
        self.mode = mode
        self.folders = dict(folders)

    @classmethod
    def create(cls, place: Hierarchy, operation_id: str, limits: SandboxLimits) -> Cgroup:
        name = f"{NAME_PREFIX}{operation_id}.{worker_identity(os.getpid())}.{secrets.token_hex(4)}"
        group = cls("v2" if place.mode == "v2" else "v1", {key: p / name for key, p in place.parents.items()})
        try:
            for folder in group.folders.values():
                folder.mkdir()
            group._limit(limits)
        except OSError:
            group.remove()
            raise
        return group

    def _limit(self, limits: SandboxLimits) -> None:
        processes = limits.processes_max + SANDBOX_PROCESSES
        quota = int(limits.cpu_cores * CPU_PERIOD_MICROSECONDS)
        if self.mode == "v2":
            folder = self.folders["all"]
            _write(folder / "memory.max", limits.memory_bytes)
            _write_if_there(folder / "memory.swap.max", 0)
            _write(folder / "pids.max", processes)
            _write(folder / "cpu.max", f"{quota} {CPU_PERIOD_MICROSECONDS}")
            return
        memory = self.folders["memory"]
        _write(memory / "memory.limit_in_bytes", limits.memory_bytes)
        _write_if_there(memory / "memory.memsw.limit_in_bytes", limits.memory_bytes)
        _write_if_there(memory / "memory.swappiness", 0)
        _write(self.folders["pids"] / "pids.max", processes)
        _write(self.folders["cpu"] / "cpu.cfs_period_us", CPU_PERIOD_MICROSECONDS)
        _write(self.folders["cpu"] / "cpu.cfs_quota_us", quota)

    @property
    def process_files(self) -> list[str]:
        return [str(folder / "cgroup.procs") for folder in self.folders.values()]

    def processes(self) -> set[int]:
        found: set[int] = set()
        for file in self.process_files:
            with contextlib.suppress(OSError):
                found.update(int(pid) for pid in Path(file).read_text().split())
        return found - {0}  # 0 stands for a process of a pid namespace that we cannot see

    def kill(self) -> bool:
        """End everything in it; True when nothing is left. Not always the first time: repeat until it is."""
        if self.mode == "v2":
            self._write_to_all("cgroup.kill", 1)
        else:
            self._write_to_all("pids.max", 0)  # no new process escapes the round below
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not self.processes()

    def _write_to_all(self, file: str, value: int) -> None:
        """To the folder that has such a file; another process may be removing them at this moment."""
        for folder in self.folders.values():
            _write_if_there(folder / file, value)

    def out_of_memory(self) -> bool:
        folder = self.folders.get("memory") or self.folders["all"]
        file = folder / ("memory.events" if self.mode == "v2" else "memory.oom_control")
        with contextlib.suppress(OSError):
            return any(line.startswith("oom_kill ") and line != "oom_kill 0" for line in file.read_text().splitlines())
        return False

    def peak_memory_bytes(self) -> int | None:
        folder = self.folders.get("memory") or self.folders["all"]
        file = folder / ("memory.peak" if self.mode == "v2" else "memory.max_usage_in_bytes")
        with contextlib.suppress(OSError, ValueError):
            return int(file.read_text())
        return None

    def remove(self) -> bool:
        """True when it is gone. A cgroup stays busy for a moment after its last process."""
        for folder in self.folders.values():
            with contextlib.suppress(OSError):
                folder.rmdir()
        return not any(folder.exists() for folder in self.folders.values())


@dataclass(frozen=True)
class Found:
    """A sandbox's cgroup as another process sees it. `worker` is the identity of the process that made it."""

    operation_id: str
    worker: str
    group: Cgroup
    created_at: float

    @property
    def worker_alive(self) -> bool:
        return is_alive(self.worker)


def sandboxes() -> list[Found]:
    """Every sandbox on this machine that has a cgroup, whichever worker made it."""
    place = hierarchy()
    by_name: dict[str, dict[str, Path]] = {}
    for mount in place.mounts:
        for folder in _walk(mount, SWEEP_DEPTH_MAX):
            by_name.setdefault(folder.name, {})[str(mount)] = folder
    return [found for name, folders in by_name.items() if (found := _found(name, folders, place.mode)) is not None]


def _walk(folder: Path, depth: int) -> Iterator[Path]:
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            if not entry.is_dir(follow_symlinks=False):
                continue
            if entry.name.startswith(NAME_PREFIX):
                yield Path(entry.path)
            elif depth > 0:
                yield from _walk(Path(entry.path), depth - 1)


def _found(name: str, folders: dict[str, Path], mode: Literal["v2", "v1", "none"]) -> Found | None:
    parts = name.removeprefix(NAME_PREFIX).split(".")
    if len(parts) != 5 or not parts[1].isdigit() or mode == "none":
        return None
    operation_id, worker = parts[0], ".".join(parts[1:4])
    try:
        created_at = min(folder.stat().st_ctime for folder in folders.values())
    except FileNotFoundError:  # it ended while we looked
        return None
    return Found(operation_id, worker, Cgroup(mode, folders), created_at)


def _write(file: Path, value: int | str) -> None:
    file.write_text(str(value))


def _write_if_there(file: Path, value: int | str) -> None:
    with contextlib.suppress(OSError):
        file.write_text(str(value))

"""What this machine can enforce: found once per process by starting a real sandbox, never assumed."""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from runs.boundary.contracts import NotSent
from runs.boundary.sandbox import bubblewrap, cgroups, seccomp
from runs.boundary.sandbox.contracts import Capabilities, SandboxCommand, SandboxLimits, SandboxResult
from runs.boundary.sandbox.uids import UID_FIRST, UID_LAST

TRIAL_FOLDER_PREFIX = "agent-kernel-probe-"  # what a worker that is killed in its trial leaves; the sweep removes it
TRIAL_SECONDS = 20.0  # on a machine under load a sandbox still starts in a tenth of it
NO_CGROUP = (
    "no writable cgroup with memory, pids and cpu: memory and processes are limited for each process alone, not for "
    "the tree. Run the worker in a delegated cgroup (systemd: Delegate=yes, DelegateSubgroup=worker), or let a tool do "
    'without by "accept_missing": ["tree_limits"]'
)
SECCOMP_ACTIONS = "/proc/sys/kernel/seccomp/actions_avail"

_lock = threading.Lock()
_known: list[Capabilities] = []


def capabilities(*, refresh: bool = False) -> Capabilities:
    """The answer of the first probe in this process, or of a new one with `refresh`. Takes some 0.1 s once."""
    with _lock:
        if refresh or not _known:
            _known[:] = [_probe()]
        return _known[0]


def _probe() -> Capabilities:
    cgroup = cgroups.hierarchy().mode
    problems = [NO_CGROUP] if cgroup == "none" else []
    path = version = unavailable = ""
    try:
        program = bubblewrap.installed()
        path, version = program.path, program.version
        seccomp.program()
        _started()
    except NotSent as error:
        unavailable = str(error).removeprefix("sandbox unavailable: ")
        problems.insert(0, unavailable)
    return Capabilities(
        driver="bubblewrap",
        unavailable=unavailable,
        program=path,
        version=version,
        user_namespaces=not unavailable,
        seccomp=Path(SECCOMP_ACTIONS).exists() and not unavailable,
        cgroup=cgroup,
        uid_pool=(UID_FIRST, UID_LAST) if os.geteuid() == 0 else None,
        problems=tuple(problems),
    )


def _started() -> None:
    """Start a sandbox with everything on. In a thread of its own: the caller may be inside an event loop."""
    with tempfile.TemporaryDirectory(prefix=TRIAL_FOLDER_PREFIX) as root, ThreadPoolExecutor(1) as thread:
        workspace = Path(root).resolve() / "workspace"
        workspace.mkdir()
        result = thread.submit(lambda: asyncio.run(_trial(workspace))).result()
    if result.exit_code != 0 or result.stdout.split() != [b"Seccomp:", b"2"]:
        said = (result.stderr or result.stdout).decode(errors="backslashreplace")[:300].strip()
        raise NotSent(f"a trial command failed in the sandbox (exit code {result.exit_code}): {said}")


async def _trial(workspace: Path) -> SandboxResult:
    from runs.boundary.sandbox.execution import execute  # it asks us first, so it cannot be imported at the top

    command = SandboxCommand(
        argv=("/bin/sh", "-c", "/usr/bin/true && grep ^Seccomp: /proc/self/status"),
        workspace=str(workspace),
        workspace_root=str(workspace.parent),
        operation_id="probe",
        limits=SandboxLimits(wall_seconds=TRIAL_SECONDS),
    )
    return await execute(command)

"""Removes what workers left behind that died: cgroups and processes of sandboxes. Touches nothing that is not ours."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Collection, Iterator
from pathlib import Path

from runs.boundary.sandbox import cgroups
from runs.boundary.sandbox.process import NAME

AGE_SECONDS_MIN = 120.0  # a sandbox of a living worker that is younger may have begun after the caller read its list
KILL_ROUNDS_MAX = 1000  # 10 s: a process that hangs in the kernel dies late
POLL_SECONDS = 0.01


def sweep(live_operation_ids: Collection[str]) -> list[str]:
    """End the sandboxes whose worker died, and those of operations that are over. Returns their operation ids.

    `live_operation_ids` are the operations that may have a running command. Harmless to repeat.
    """
    swept = set()
    for found in cgroups.sandboxes():
        if _is_over(found, live_operation_ids):
            swept.add(found.operation_id)
            _remove(found.group)
    for pid, operation_id, worker in _processes():
        if cgroups.worker_identity(int(worker.split(".")[0])) != worker:
            swept.add(operation_id)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    return sorted(swept)


def _is_over(found: cgroups.Found, live_operation_ids: Collection[str]) -> bool:
    if not found.worker_alive:
        return True
    return found.operation_id not in live_operation_ids and time.time() - found.created_at > AGE_SECONDS_MIN


def _remove(group: cgroups.Cgroup) -> None:
    for _ in range(KILL_ROUNDS_MAX):
        if group.kill() and group.remove():
            return
        time.sleep(POLL_SECONDS)


def _processes() -> Iterator[tuple[int, str, str]]:
    """Processes of sandboxes by the name that we gave them: pid, operation id, identity of the worker."""
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            parts = (folder / "cmdline").read_bytes().split(b"\0")[0].decode(errors="replace").split(":")
            if len(parts) == 3 and parts[0] == NAME and parts[2].split(".")[0].isdigit():
                yield int(folder.name), parts[1], parts[2]

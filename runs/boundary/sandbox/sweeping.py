"""Removes what workers left behind that died: cgroups, processes and folders of sandboxes. Touches nothing that is not
ours, and nothing that lives."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from runs.boundary.sandbox import cgroups
from runs.boundary.sandbox.capabilities import TRIAL_FOLDER_PREFIX
from runs.boundary.sandbox.process import NAME
from runs.boundary.sandbox.uids import UID_FIRST, UID_LAST

AGE_SECONDS_MIN = 120.0  # a sandbox of a living worker that is younger may have begun after the caller read its list
FOLDER_AGE_SECONDS_MIN = 600.0  # a trial takes 20 s at most
KILL_ROUNDS_MAX = 1000  # 10 s: a process that hangs in the kernel dies late
POLL_SECONDS = 0.01

# Of these operations, those that are known and over. What is not known may belong to another installation.
Over = Callable[[Collection[str]], Collection[str]]


def sweep(over: Over) -> list[str]:
    """End the sandboxes whose worker died, and those of operations that are over. Returns their operation ids.

    Harmless to repeat, and beside itself.
    """
    found = cgroups.sandboxes()
    ended = over([one.operation_id for one in found if one.worker_alive and _is_old(one)])
    swept = set()
    for one in found:
        if not one.worker_alive or (one.operation_id in ended and _is_old(one)):
            swept.add(one.operation_id)
            _remove(one.group)
    for pid, operation_id, worker in _processes():
        if not cgroups.is_alive(worker):
            swept.add(operation_id)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    return sorted(swept)


def _is_old(found: cgroups.Found) -> bool:
    return time.time() - found.created_at > AGE_SECONDS_MIN


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
            if not _is_ours(folder.stat().st_uid):
                continue  # a name can be given by anybody; we end only what ran as one of ours
            parts = (folder / "cmdline").read_bytes().split(b"\0")[0].decode(errors="replace").split(":")
            if len(parts) == 3 and parts[0] == NAME and _is_identity(parts[2]):
                yield int(folder.name), parts[1], parts[2]


def _is_ours(uid: int) -> bool:
    return uid == os.geteuid() or (os.geteuid() == 0 and UID_FIRST <= uid <= UID_LAST)


def _is_identity(text: str) -> bool:
    parts = text.split(".")
    return len(parts) == 3 and all(part.isdigit() for part in parts)


def sweep_folders(*places: str | Path) -> list[Path]:
    """Remove the scratch folders of trials whose process was killed, in the temporary folder and in `places`."""
    removed = []
    for place in {Path(tempfile.gettempdir()), *map(Path, places)}:
        for folder in place.glob(f"{TRIAL_FOLDER_PREFIX}*"):
            with contextlib.suppress(OSError):
                status = folder.lstat()
                if status.st_uid == os.geteuid() and time.time() - status.st_mtime > FOLDER_AGE_SECONDS_MIN:
                    shutil.rmtree(folder)  # refuses symbolic links
                    removed.append(folder)
    return removed

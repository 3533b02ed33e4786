"""Which server process got which call, so that a probe of another process knows whether the call may still run.

A server process, with all its descendants, holds the lock of a file as long as one of them lives. Before a call that
can be looked for is sent to it, a note by the call's name says which lock that is. A note that is not here, or is of
another machine or boot, proves nothing. Holds no data of calls, and decides nothing about them.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from itertools import islice
from pathlib import Path
from uuid import uuid4

from django.conf import settings

from runs.boundary.contracts import NotSent, Refused

FOLDER = ".mcp"  # beside the workspaces: projects' names never begin with a dot
QUIET_SECONDS = 8.0  # that a probe waits for a process to end; a session in doubt ends sooner, unless it is used
QUIET_POLL_SECONDS = 0.25
TIDIED_MAX = 200  # old files of one kind that the start of a session looks at
NOTE_SECONDS_MAX = 90 * 24 * 3600.0  # an operation that is unclear for longer needs a person anyway
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

logger = logging.getLogger(__name__)


@contextmanager
def held_lock() -> Iterator[tuple[str, int | None]]:
    """The name of a new lock file and a descriptor that holds its lock, to be handed to the process; ("", None) if
    there can be none. The descriptor is closed here afterwards: the process has its own by then."""
    try:
        name, descriptor = _new_lock()
    except OSError as error:
        logger.warning("there can be no lock for an MCP server process: %s", error.strerror)
        yield "", None
        return
    try:
        yield name, descriptor
    finally:
        os.close(descriptor)


def _new_lock() -> tuple[str, int]:
    """It is locked before it has its name, so that nobody takes it for the file of a process that has ended."""
    folder = _folder("locks")
    folder.mkdir(parents=True, exist_ok=True)
    name = uuid4().hex
    fresh = folder / f"{name}.new"
    descriptor = os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fresh.rename(folder / name)
    return name, descriptor


def forget_lock(name: str) -> None:
    """Remove the file of a process that has ended."""
    if name:
        with suppress(OSError):
            (_folder("locks") / name).unlink()


def forget_lock_if_free(name: str) -> None:
    """Remove the file of a process that should have ended, unless a descendant of it lives on."""
    if name and not _is_held(_folder("locks") / name):
        forget_lock(name)


def tidy() -> None:
    """Remove what processes of dead workers left behind: locks that nobody holds, notes that are too old."""
    with suppress(OSError):
        for entry in islice(os.scandir(_folder("locks")), TIDIED_MAX):
            if not entry.name.endswith(".new") and not _is_held(Path(entry.path)):
                forget_lock(entry.name)
    with suppress(OSError):
        for entry in islice(os.scandir(_folder("calls")), TIDIED_MAX):
            if time.time() - entry.stat().st_mtime > NOTE_SECONDS_MAX:
                Path(entry.path).unlink()


@asynccontextmanager
async def noted(call: str, lock: str) -> AsyncGenerator[None]:
    """Note which lock the process of this call holds, until the call's outcome is clear; an unclear one keeps its note.

    Without a name or a lock nothing is noted, and a probe will not be able to tell.
    """
    if not call or not lock:
        yield
        return
    await asyncio.to_thread(_note, call, lock)
    try:
        yield
    except (NotSent, Refused):
        await asyncio.to_thread(_drop, call)
        raise
    await asyncio.to_thread(_drop, call)


def _note(call: str, lock: str) -> None:
    try:
        folder = _folder("calls")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / call).write_text(json.dumps({"boot": _boot(), "lock": lock}))
    except OSError as error:
        logger.warning("it cannot be noted which process gets a call: %s", error.strerror)


def _drop(call: str) -> None:
    with suppress(OSError):
        (_folder("calls") / call).unlink()


async def could_still_act(operation: str, attempt: int) -> str:
    """Wait a little for the processes that got this operation's calls to end; why one of them may still act, or ""."""
    waited_until = asyncio.get_running_loop().time() + QUIET_SECONDS
    while True:
        why, may_end = await asyncio.to_thread(_standing, operation, attempt)
        if not why or not may_end or asyncio.get_running_loop().time() >= waited_until:
            return why
        await asyncio.sleep(QUIET_POLL_SECONDS)


def _standing(operation: str, attempt: int) -> tuple[str, bool]:
    """Why a call may still run, and whether waiting could change that. Earlier attempts count if they left a note."""
    for number in range(attempt, 0, -1):
        try:
            note = json.loads((_folder("calls") / call_name(operation, number)).read_text())
        except FileNotFoundError:
            if number == attempt:
                return "it is not known on this machine which server process got the call", False
            continue
        except (OSError, ValueError):
            return "the note about the server process that got the call cannot be read", False
        if note.get("boot") != _boot():
            return "the call went to a server process of another machine, or before a restart of it", False
        if _is_held(_folder("locks") / str(note.get("lock"))):
            return "the server process that got the call has not ended; it could still act", True
    return "", False


def call_name(operation: str, attempt: int) -> str:
    """How a call is named in notes."""
    return f"{operation}.{attempt}"


def _is_held(path: Path) -> bool:
    """Whether a process still holds this lock; a file that is gone was held by one that has ended."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def _boot() -> str:
    return BOOT_ID.read_text().strip()


def _folder(kind: str) -> Path:
    root: Path = settings.WORKSPACE_ROOT
    return root / FOLDER / kind

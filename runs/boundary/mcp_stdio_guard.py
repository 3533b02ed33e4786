"""Runs one MCP server process and sees to it that nothing of it outlives the worker. Imports no project code.

Started as a program of its own: `python -I -S mcp_stdio_guard.py PARENT_PID COMMAND ARGS…`. It hands its standard
streams to the server, keeps none of them, and ends the server and every descendant, also one in a session of its own,
as soon as the server exits, the worker dies (however it dies), or it is asked to end.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

PR_SET_PDEATHSIG = 1  # linux/prctl.h
PR_SET_CHILD_SUBREAPER = 36
ROUNDS_MAX = 1000  # of ending descendants; each round ends all that are seen, so only a fork bomb needs many
ASKED = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
WATCHED = ASKED | {signal.SIGCHLD}
CANNOT_START = 127  # as a shell says it


def main(arguments: list[str]) -> int:
    worker, command = int(arguments[0]), arguments[1:]
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    if os.getppid() != worker:  # it died before the line above: its death will not be reported
        return CANNOT_START
    server = os.fork()
    if server == 0:
        _become_server(libc, command)
    _let_go_of_streams()
    status = _wait_for_end(server)
    _end_descendants()
    return status


def _become_server(libc: ctypes.CDLL, command: list[str]) -> NoReturn:
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # should the guard itself be killed
    signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED)
    try:
        os.execvp(command[0], command)  # noqa: S606
    except OSError as error:
        os.write(2, f"cannot start {command[0]}: {error.strerror}\n".encode())
    os._exit(CANNOT_START)


def _let_go_of_streams() -> None:
    """Only the server may hold the pipes: their ends must be seen when it is gone."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)


def _wait_for_end(server: int) -> int:
    while signal.sigwait(WATCHED) not in ASKED:
        if (status := _reap().get(server)) is not None:
            return status
    return 128 + signal.SIGTERM


def _reap() -> dict[int, int]:
    """Collect all ended children, adopted ones too: pid and exit status."""
    ended: dict[int, int] = {}
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            code = os.waitstatus_to_exitcode(status)
            ended[pid] = code if code >= 0 else 128 - code
    return ended


def _end_descendants() -> None:
    """End children until there are none: those of an ended child become ours, because we are the subreaper."""
    for _ in range(ROUNDS_MAX):
        children = _children()
        if not children:
            return
        for pid in children:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(-1, 0)
        _reap()


def _children() -> list[int]:
    me = str(os.getpid())
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError, IndexError):
                # "pid (name) state ppid …"; the name may hold spaces and parentheses
                if (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[1] == me:
                    found.append(int(entry.name))
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

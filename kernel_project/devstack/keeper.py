"""The small parent of one embedded process: it ends the process and all its descendants when the owner is gone.

Runs as a script of its own, standard library only, so that it outlives a SIGKILL of the owner. It restarts nothing.

Standard input is the lifeline: each byte is a signal number for the process; its end means that the owner is gone.
Lines on the report descriptor: `started <pid>`, `exited <return code>`.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import pwd
import select
import signal
import struct
import sys
import time
from pathlib import Path

PR_SET_PDEATHSIG, PR_SET_KEEPCAPS, PR_SET_CHILD_SUBREAPER, PR_CAP_AMBIENT = 1, 8, 36, 47
PR_CAP_AMBIENT_RAISE = 2
CAP_DAC_OVERRIDE = 1
CAPABILITY_VERSION_3 = 0x20080522
OWNER_POLL_MS = 500  # how often the owner's pid is looked at, should the lifeline have leaked into another process
SWEEP_SECONDS_MAX = 10  # a process that survives SIGKILL this long hangs in the system; waiting more helps nobody
SWEEP_PAUSE_SECONDS = 0.01
EXIT_REFUSED = 126

libc = ctypes.CDLL(None, use_errno=True)


def prctl(option: int, value: int, extra: int = 0) -> None:
    if libc.prctl(option, value, extra, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")


def become(user: str, reach_everything: bool) -> None:
    """Give up root for `user`; `reach_everything` keeps the right to pass folders that only root may enter."""
    account = pwd.getpwnam(user)
    prctl(PR_SET_KEEPCAPS, int(reach_everything))
    os.setgroups([])
    os.setgid(account.pw_gid)
    os.setuid(account.pw_uid)
    if reach_everything:
        capability = 1 << CAP_DAC_OVERRIDE
        header = struct.pack("Ii", CAPABILITY_VERSION_3, 0)
        if libc.capset(header, struct.pack("6I", capability, capability, capability, 0, 0, 0)) != 0:
            raise OSError(ctypes.get_errno(), "capset failed")
        prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_DAC_OVERRIDE)


def start(options: argparse.Namespace) -> int:
    """Fork and execute the command. The child dies with its keeper, whatever kills the keeper."""
    keeper = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        with open(os.devnull, "rb") as nothing:  # noqa: PTH123
            os.dup2(nothing.fileno(), 0)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        if options.user:
            become(options.user, options.reach_everything)
        prctl(PR_SET_PDEATHSIG, options.death_signal)  # after the change of user, which clears it
        if os.getppid() == keeper:
            os.execvp(options.command[0], options.command)  # noqa: S606
    except OSError as error:
        os.write(2, f"cannot start {options.command[0]}: {error.strerror}\n".encode())
    os._exit(EXIT_REFUSED)


def parent_of(pid: int) -> int:
    stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    return int(stat.rpartition(")")[2].split()[1])


def descendants(root: int) -> list[int]:
    """All living descendants of `root`, parents first."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):  # noqa: PTH208
        if entry.isdigit():
            with contextlib.suppress(OSError, ValueError):
                children.setdefault(parent_of(int(entry)), []).append(int(entry))
    found = list(children.get(root, []))
    for pid in found:  # grows while it is read: breadth first
        found.extend(children.get(pid, []))
    return found


def reap(child: int) -> int | None:
    """Collect every dead descendant. Returns the child's return code if it was among them."""
    code = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code
        if pid == 0:
            return code
        if pid == child:
            code = os.waitstatus_to_exitcode(status)


def sweep(child: int) -> int | None:
    """SIGKILL everything that is left below this keeper, until nothing is, or the limit is reached."""
    code = None
    deadline = time.monotonic() + SWEEP_SECONDS_MAX
    while (left := descendants(os.getpid())) and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(SWEEP_PAUSE_SECONDS)
        reaped = reap(child)
        code = code if reaped is None else reaped
    return code


class Keeping:
    """The wait for whichever comes first: the process ends, the owner asks for a signal, the owner is gone."""

    def __init__(self, child: int, owner: int, stop_signal: int, grace_seconds: float, wakeup: int) -> None:
        self.child, self.owner, self.stop_signal, self.wakeup = child, owner, stop_signal, wakeup
        self.grace_seconds = grace_seconds
        self.kill_at: float | None = None
        self.poll = select.poll()
        self.poll.register(0, select.POLLIN)
        self.poll.register(wakeup, select.POLLIN)

    def until_exit(self) -> int | None:
        while True:
            events = dict(self.poll.poll(OWNER_POLL_MS))
            if self.wakeup in events:
                os.read(self.wakeup, 4096)
            if (code := reap(self.child)) is not None:
                return code
            if 0 in events:
                self.hear()
            if os.getppid() != self.owner:
                self.owner_gone()
            if self.kill_at is not None and time.monotonic() > self.kill_at:
                return None  # out of patience: the sweep ends it

    def hear(self) -> None:
        numbers = os.read(0, 64)
        for number in numbers:
            os.kill(self.child, number)
        if not numbers:
            self.owner_gone()

    def owner_gone(self) -> None:
        if self.kill_at is None:
            self.kill_at = time.monotonic() + self.grace_seconds
            os.kill(self.child, self.stop_signal)
            with contextlib.suppress(KeyError):
                self.poll.unregister(0)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--owner", type=int, required=True)
    parser.add_argument("--report", type=int, required=True)
    parser.add_argument("--user", default="")
    parser.add_argument("--reach-everything", action="store_true")
    parser.add_argument("--stop-signal", type=int, required=True)
    parser.add_argument("--death-signal", type=int, required=True)
    parser.add_argument("--grace-seconds", type=float, required=True)
    parser.add_argument("command", nargs="+")
    return parser.parse_args()


def main() -> None:
    options = read_options()
    report: int = options.report
    for descriptor in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208
        if descriptor > 2:
            with contextlib.suppress(OSError):  # the one that listed the folder
                os.set_inheritable(descriptor, False)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    wakeup, wakeup_write = os.pipe()
    os.set_blocking(wakeup_write, False)
    signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    if os.getppid() != options.owner:
        return
    child = start(options)
    with contextlib.suppress(OSError):  # the owner may be gone already; the loop below will see it
        os.write(report, f"started {child}\n".encode())
    code = Keeping(child, options.owner, options.stop_signal, options.grace_seconds, wakeup).until_exit()
    swept = sweep(child)
    code = code if code is not None else swept
    with contextlib.suppress(OSError):
        os.write(report, f"exited {code if code is not None else -signal.SIGKILL}\n".encode())


if __name__ == "__main__":
    main()
    sys.exit(0)

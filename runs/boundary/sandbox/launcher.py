"""Between the worker and bwrap: one process that becomes bwrap, and a guard that ends the sandbox when the worker dies.

A program of its own, started with `python -I -S`, because code between fork and exec of a threaded worker can hang.
It reads its orders (marshal, from its own worker) from one descriptor, writes nothing but a reason of failure to
another, imports no package and never runs a command itself.

Why a guard: bwrap's --die-with-parent takes hold only after its set-up (its inner process asks for the signal last of
all and does not look whether the parent still lives), so a worker killed in those milliseconds would leave a command.
"""

# Each command waits for this program to start: pathlib, json, signal and contextlib would double its 30 ms.
# ruff: noqa: PTH102, PTH106, PTH110, PTH120, PTH123, PTH208, SIM105

from __future__ import annotations

import ctypes
import marshal
import os
import resource
import select
import sys
import time
from typing import Any

FAILED_EXIT_CODE = 125  # nothing of the command has run; the reason stands on the status descriptor
STAGE = "/tmp"  # noqa: S108  covered by a fresh tmpfs that only this process and bwrap can see

FAILURE_PREFIX = b"launcher-error "
POLL_SECONDS = 0.002
STOP_POLLS_MAX = 500  # a process stops, and a cgroup empties, within microseconds; a second means that it never will
END_SECONDS_MAX = 5.0  # a process that cannot be killed hangs in the kernel; the worker reports it

SIGKILL, SIGSTOP = 9, 19
PR_SET_PDEATHSIG = 1
CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REC, MS_PRIVATE = 2, 4, 8, 0x4000, 0x40000
SYS_OPEN_TREE, SYS_MOVE_MOUNT, SYS_MOUNT_SETATTR = 428, 429, 442  # the same numbers on every architecture
AT_FDCWD, AT_EMPTY_PATH, OPEN_TREE_CLONE, MOVE_MOUNT_FROM_FD = -100, 0x1000, 1, 4
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV, MOUNT_ATTR_IDMAP = 0x1, 0x2, 0x4, 0x100000

libc = ctypes.CDLL(None, use_errno=True)


class MountAttributes(ctypes.Structure):
    """struct mount_attr of mount_setattr(2)."""

    _fields_ = [(name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "userns_fd")]


def _checked(result: int, what: str) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")
    return result


def _syscall(number: int, *arguments: Any, what: str) -> int:
    """Integers are passed as 64-bit longs: libc's syscall() is variadic."""
    converted = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    return _checked(libc.syscall(ctypes.c_long(number), *converted), what)


def main(orders_fd: int, status_fd: int) -> None:
    with os.fdopen(orders_fd, "rb") as stream:
        orders = marshal.load(stream)  # noqa: S302  written by our worker into a descriptor that nobody else has
    try:
        worker = _open_worker(orders)
        guard = os.getpid()
        bwrap = os.fork()
        if bwrap == 0:
            os.close(orders["control_fd"])
            _become_bwrap(orders, guard)
    except Exception as error:
        reason = str(error).replace("\n", " ").encode(errors="backslashreplace")
        os.write(status_fd, FAILURE_PREFIX + reason + b"\n")
        os._exit(FAILED_EXIT_CODE)
    os._exit(_guard(bwrap, worker, orders))


def _open_worker(orders: dict[str, Any]) -> int:
    try:
        worker = os.pidfd_open(orders["parent_pid"])
        if os.getppid() == orders["parent_pid"]:
            return worker
    except ProcessLookupError:
        pass
    _clear_cgroups(orders["cgroup_files"])  # it died before we could watch it: nobody waits for an answer
    os._exit(FAILED_EXIT_CODE)


def _guard(bwrap: int, worker: int, orders: dict[str, Any]) -> int:
    """Wait for bwrap; end the sandbox when the worker asks for it, or dies. Returns bwrap's exit code."""
    control, ended = orders["control_fd"], os.pidfd_open(bwrap)
    _keep_only({control, worker, ended})
    ready, _, _ = select.select([control, worker, ended], [], [])
    told = control in ready and os.read(control, 1) != b""  # end of file: the worker is dead, or dying
    if ended not in ready:
        _end(bwrap)
    code = os.waitstatus_to_exitcode(os.waitpid(bwrap, 0)[1])
    if not told and (worker in ready or control in ready):
        _clear_cgroups(orders["cgroup_files"])
    return code if code >= 0 else 128 - code


def _keep_only(kept: set[int]) -> None:
    """The guard must not hold the command's pipes open."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            try:
                os.close(int(name))
            except OSError:  # the descriptor of this very listing is gone already
                pass


def _end(bwrap: int) -> None:
    """Kill bwrap's child, the first process of the sandbox, and wait: with it the system kills all others.

    bwrap is stopped first, so that no child comes into being between the look and the kill.
    """
    os.kill(bwrap, SIGSTOP)
    for _ in range(STOP_POLLS_MAX):
        if _state(bwrap) in "TZ":
            break
        time.sleep(POLL_SECONDS)
    for child in _children(bwrap):
        handle = os.pidfd_open(child)  # still that process: its parent is stopped and cannot reap it
        os.kill(child, SIGKILL)
        select.select([handle], [], [], END_SECONDS_MAX)
    os.kill(bwrap, SIGKILL)


def _state(pid: int) -> str:
    with open(f"/proc/{pid}/stat") as stream:
        return stream.read().rpartition(") ")[2][0]


def _children(pid: int) -> list[int]:
    with open(f"/proc/{pid}/task/{pid}/children") as stream:
        return [int(child) for child in stream.read().split()]


def _clear_cgroups(files: list[str]) -> None:
    """The worker is dead and removes nothing any more. What stays busy is left to the sweep."""
    for _ in range(STOP_POLLS_MAX):
        folders = [os.path.dirname(file) for file in files if os.path.exists(file)]
        for folder in folders:
            try:
                os.rmdir(folder)
            except OSError:
                pass
        if not folders:
            return
        time.sleep(POLL_SECONDS)


def _become_bwrap(orders: dict[str, Any], guard: int) -> None:
    for path in orders["cgroup_files"]:
        with open(path, "w") as stream:
            stream.write("0")
    if orders["uid"] is not None:
        _stage(orders)
    for name, (soft, hard) in orders["rlimits"].items():
        _lower(getattr(resource, name), soft, hard)
    if orders["uid"] is not None:
        os.setgroups([])
        os.setresgid(orders["uid"], orders["uid"], orders["uid"])
        os.setresuid(orders["uid"], orders["uid"], orders["uid"])
    _checked(libc.prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0), "prctl")  # after the change of user, which clears it
    if os.getppid() != guard:
        raise OSError("the guard has died")
    os.execve(orders["executable"], orders["argv"], {})  # noqa: S606  no environment: it would be /proc/1/environ


def _lower(kind: int, soft: int, hard: int) -> None:
    """Never above the hard limit that we were born with: raising it needs a right that we may not have."""
    ceiling = resource.getrlimit(kind)[1]
    if ceiling != resource.RLIM_INFINITY:
        soft, hard = min(soft, ceiling), min(hard, ceiling)
    resource.setrlimit(kind, (soft, hard))


def _stage(orders: dict[str, Any]) -> None:
    """In a mount namespace of our own, put the workspace and bwrap where the unprivileged uid can reach them.

    The workspace is mounted with mapped ids: what the kernel's user owns on disk belongs to the pool uid in there,
    and what the command creates belongs to the kernel's user on disk. Nobody's ownership is ever changed.
    """
    trees = {name: _clone(path) for name, path in orders["programs"].items()}
    workspace = _clone(f"/proc/self/fd/{orders['workspace_fd']}")
    os.close(orders["workspace_fd"])
    _map_ids(workspace, orders["owner_uid"], orders["owner_gid"], orders["uid"])
    _checked(libc.unshare(CLONE_NEWNS), "a mount namespace cannot be made (unshare)")
    _mount(None, b"/", None, MS_REC | MS_PRIVATE, None)
    _mount(b"tmpfs", STAGE.encode(), b"tmpfs", MS_NOSUID | MS_NODEV, b"mode=0755,size=64k")
    for name, tree in {**trees, "workspace": workspace}.items():
        os.mkdir(f"{STAGE}/{name}")
        _syscall(SYS_MOVE_MOUNT, tree, b"", AT_FDCWD, f"{STAGE}/{name}".encode(), MOVE_MOUNT_FROM_FD, what="move_mount")
        os.close(tree)


def _clone(path: str) -> int:
    """A detached copy of one mounted tree, without what is mounted below it."""
    flags = OPEN_TREE_CLONE | os.O_CLOEXEC
    return _syscall(SYS_OPEN_TREE, AT_FDCWD, path.encode(), flags, what="the folder cannot be mounted (open_tree)")


def _mount(source: bytes | None, target: bytes, kind: bytes | None, flags: int, data: bytes | None) -> None:
    _checked(libc.mount(source, target, kind, ctypes.c_ulong(flags), data), f"mount on {target.decode()}")


def _map_ids(tree: int, owner_uid: int, owner_gid: int, uid: int) -> None:
    userns = _user_namespace(f"{owner_uid} {uid} 1", f"{owner_gid} {uid} 1")
    attributes = MountAttributes(set=MOUNT_ATTR_IDMAP | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV, userns_fd=userns)
    size = ctypes.sizeof(attributes)
    what = "ids cannot be mapped on the workspace's file system (mount_setattr; ext4, xfs, btrfs and tmpfs can)"
    _syscall(SYS_MOUNT_SETATTR, tree, b"", AT_EMPTY_PATH, ctypes.byref(attributes), size, what=what)
    os.close(userns)


def _user_namespace(uid_map: str, gid_map: str) -> int:
    """A user namespace that exists only to carry a mapping; the child that made it ends at once."""
    ready_read, ready_write = os.pipe()
    hold_read, hold_write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(hold_write)
        os.write(ready_write, b"1" if libc.unshare(CLONE_NEWUSER) == 0 else b"0")
        os.read(hold_read, 1)
        os._exit(0)
    try:
        if os.read(ready_read, 1) != b"1":
            raise OSError("a user namespace cannot be made (unshare)")
        for name, text in (("uid_map", uid_map), ("gid_map", gid_map)):
            with open(f"/proc/{child}/{name}", "w") as stream:
                stream.write(text)
        return os.open(f"/proc/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        for descriptor in (ready_read, ready_write, hold_read, hold_write):
            os.close(descriptor)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))

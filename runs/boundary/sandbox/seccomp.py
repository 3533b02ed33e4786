"""The system calls that a sandboxed command may not make, as a classic BPF program for `bwrap --seccomp`.

A deny-list for a process that already has no capabilities and can make no namespaces: it closes the doors that remain
(kernel attack surface, virtual sockets that no network namespace holds, set-uid files in a shared workspace).
Numbers: the Linux tables for x86_64 and for the generic ABI (aarch64); sources in seccomp(2) and <linux/filter.h>.
"""

from __future__ import annotations

import errno
import platform
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from runs.boundary.contracts import NotSent

AUDIT_ARCH: Final = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
X32_BIT = 0x40000000  # x86_64 serves a second table above it; nothing in a sandbox needs that
HIGHEST_REVIEWED = 469  # file_setattr, Linux 6.17; what the kernel learns later is answered "not implemented"

# struct seccomp_data: nr at 0, arch at 4, then the arguments, 8 bytes each (both architectures are little-endian).
OFFSET_NUMBER, OFFSET_ARCH, OFFSET_ARGUMENTS = 0, 4, 16
LOAD, AND, RETURN = 0x20, 0x54, 0x06  # BPF_LD|W|ABS, BPF_ALU|AND|K, BPF_RET|K
JUMP_EQUAL, JUMP_GREATER = 0x15, 0x25
ALLOW, KILL_PROCESS, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
MASK_32 = 0xFFFFFFFF

# name: (x86_64, aarch64); None where the architecture has no such call.
DENIED: Final[dict[str, tuple[int | None, int | None]]] = {
    # look into or steer other processes
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "pidfd_getfd": (438, 438), "process_madvise": (440, 440), "move_pages": (279, 239), "migrate_pages": (256, 238),
    # mounts and namespaces
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "setns": (308, 268),
    "unshare": (272, 97), "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442),
    "open_tree_attr": (467, 467),
    # large kernel surfaces that commands have no use for
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "fanotify_init": (300, 262),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219), "vmsplice": (278, 75),
    # files by handle pass by every mount
    "open_by_handle_at": (304, 265), "name_to_handle_at": (303, 264),
    # the machine itself
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "init_module": (175, 105), "finit_module": (313, 273),
    "delete_module": (176, 106), "swapon": (167, 224), "swapoff": (168, 225), "reboot": (169, 142),
    "acct": (163, 89), "quotactl": (179, 60), "quotactl_fd": (443, 443), "syslog": (103, 116),
    "settimeofday": (164, 170), "clock_settime": (227, 112), "adjtimex": (159, 171), "clock_adjtime": (305, 266),
    "vhangup": (153, 58), "sethostname": (170, 161), "setdomainname": (171, 162), "iopl": (172, None),
    "ioperm": (173, None), "modify_ldt": (154, None), "uselib": (134, None), "nfsservctl": (180, 42),
    "lookup_dcookie": (212, 18),
}  # fmt: skip

# Answered "not implemented", so that libraries take their older way, which can be judged: a filter cannot see
# behind a pointer, where these carry their flags and modes.
UNKNOWN_TO_COMMANDS: Final = {"clone3": (435, 435), "openat2": (437, 437)}

CLONE_NAMESPACES = 0x7E020000  # CLONE_NEW{NS,CGROUP,UTS,IPC,USER,PID,NET}
SET_ID_BITS = 0o6000
O_CREAT, O_TMPFILE = 0o100, 0o20000000
SOCKET_FAMILIES_ALLOWED = (
    1,
    2,
    10,
    16,
)  # unix, inet, inet6, netlink; no vsock: it reaches the host of a virtual machine
TERMINAL_INJECTION = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX


@dataclass(frozen=True)
class Condition:
    """Holds when `argument & mask` equals `equals` or, if that is None, when any bit of it is set."""

    argument: int
    mask: int = MASK_32
    equals: int | None = None


@dataclass(frozen=True)
class Rule:
    """Deny one call when all conditions hold."""

    call: tuple[int | None, int | None]
    conditions: tuple[Condition, ...]
    error: int = errno.EPERM


def _set_id(call: tuple[int | None, int | None], mode: int, *creating: Condition) -> Rule:
    return Rule(call, (*creating, Condition(mode, SET_ID_BITS)))


# With mapped ids a file of the command belongs to the kernel's user on disk: a set-uid bit there would be a way out.
CONDITIONAL: Final = (
    Rule((56, 220), (Condition(0, CLONE_NAMESPACES),)),
    *(Rule((16, 29), (Condition(1, equals=request),)) for request in TERMINAL_INJECTION),
    _set_id((90, None), 1),  # chmod
    _set_id((91, 52), 1),  # fchmod
    _set_id((268, 53), 2),  # fchmodat
    _set_id((452, 452), 2),  # fchmodat2
    _set_id((83, None), 1),  # mkdir
    _set_id((258, 34), 2),  # mkdirat
    _set_id((133, None), 1),  # mknod
    _set_id((259, 33), 2),  # mknodat
    _set_id((85, None), 1),  # creat
    *(_set_id((2, None), 2, Condition(1, flag)) for flag in (O_CREAT, O_TMPFILE)),  # open
    *(_set_id((257, 56), 3, Condition(2, flag)) for flag in (O_CREAT, O_TMPFILE)),  # openat
)
SOCKET = (41, 198)
SOCKETPAIR = (53, 199)


def program(machine: str | None = None) -> bytes:
    """The filter for this machine's architecture, as bwrap reads it. Raises NotSent for an unknown one."""
    machine = machine or platform.machine()
    if machine not in AUDIT_ARCH:
        raise NotSent(f"sandbox unavailable: no system call table for {machine}; run the worker on x86_64 or aarch64")
    column = list(AUDIT_ARCH).index(machine)
    return b"".join(_instructions(AUDIT_ARCH[machine], column))


def _instructions(arch: int, column: int) -> Iterable[bytes]:
    yield _op(LOAD, OFFSET_ARCH)
    yield _op(JUMP_EQUAL, arch, if_true=1)
    yield _op(RETURN, KILL_PROCESS)  # another architecture has other numbers: nothing can be judged
    yield _op(LOAD, OFFSET_NUMBER)
    yield _op(JUMP_GREATER, HIGHEST_REVIEWED, if_false=1)  # also holds the whole x32 table
    yield _op(RETURN, ERRNO | errno.ENOSYS)
    yield from _unconditional(DENIED.values(), column, errno.EPERM)
    yield from _unconditional(UNKNOWN_TO_COMMANDS.values(), column, errno.ENOSYS)
    for rule in CONDITIONAL:
        yield from _conditional(rule, column)
    for call in (SOCKET, SOCKETPAIR):
        yield from _families(call[column])
    yield _op(RETURN, ALLOW)


def _op(code: int, value: int, *, if_true: int = 0, if_false: int = 0) -> bytes:
    """struct sock_filter."""
    return struct.pack("<HBBI", code, if_true, if_false, value)


def _unconditional(calls: Iterable[tuple[int | None, int | None]], column: int, error: int) -> Iterable[bytes]:
    for call in calls:
        if (number := call[column]) is not None:
            yield _op(JUMP_EQUAL, number, if_false=1)
            yield _op(RETURN, ERRNO | error)


def _conditional(rule: Rule, column: int) -> Sequence[bytes]:
    """Each test that fails jumps to the end of the block, so the block is built backwards. A holds the number there."""
    if (number := rule.call[column]) is None:
        return []
    block = [_op(RETURN, ERRNO | rule.error)]
    for condition in reversed(rule.conditions):
        block = [*_test(condition, skip=len(block)), *block]
    block = [_op(JUMP_EQUAL, number, if_false=len(block)), *block]
    return [_op(LOAD, OFFSET_NUMBER), *block]


def _test(condition: Condition, skip: int) -> Sequence[bytes]:
    head = [_op(LOAD, OFFSET_ARGUMENTS + 8 * condition.argument), _op(AND, condition.mask)]
    if condition.equals is None:
        return [*head, _op(JUMP_EQUAL, 0, if_true=skip)]
    return [*head, _op(JUMP_EQUAL, condition.equals, if_false=skip)]


def _families(number: int) -> Sequence[bytes]:
    """The one allow-list: a socket of any family that is not named is refused."""
    families = SOCKET_FAMILIES_ALLOWED
    tests = [_op(JUMP_EQUAL, family, if_true=len(families) - i) for i, family in enumerate(families)]
    block = [_op(LOAD, OFFSET_ARGUMENTS), *tests, _op(RETURN, ERRNO | errno.EAFNOSUPPORT)]
    return [_op(LOAD, OFFSET_NUMBER), _op(JUMP_EQUAL, number, if_false=len(block)), *block]

"""The filter program, run here by an interpreter of its own, for both architectures."""

from __future__ import annotations

import errno
import struct

import pytest

from runs.boundary.contracts import NotSent
from runs.boundary.sandbox import seccomp

ALLOWED = "allowed"
CALLS = {  # name: (x86_64, aarch64)
    "read": (0, 63), "write": (1, 64), "execve": (59, 221), "openat": (257, 56), "clone": (56, 220),
    "clone3": (435, 435), "fchmodat": (268, 53), "fchmod": (91, 52), "fchmodat2": (452, 452), "mkdirat": (258, 34),
    "mknodat": (259, 33),
    "socket": (41, 198), "socketpair": (53, 199), "ptrace": (101, 117), "mount": (165, 40), "unshare": (272, 97),
    "bpf": (321, 280), "io_uring_setup": (425, 425), "keyctl": (250, 219), "ioctl": (16, 29), "setns": (308, 268),
    "openat2": (437, 437), "process_vm_readv": (310, 270), "newer than the list": (470, 470),
    "x32 read": (0x40000000, -1),
}  # fmt: skip
AT_FDCWD = 0xFFFFFFFFFFFFFF9C
O_CREAT, O_TMPFILE = 0o100, 0o20200000

EXPECTED = [
    ("read", (), ALLOWED),
    ("write", (), ALLOWED),
    ("execve", (), ALLOWED),
    ("clone", (17,), ALLOWED),
    ("clone", (0x3D0F00,), ALLOWED),  # a thread of glibc
    ("clone", (0x10000000,), errno.EPERM),
    ("clone", (0x00020000 | 17,), errno.EPERM),
    ("clone3", (), errno.ENOSYS),
    ("openat", (AT_FDCWD, 0, 0, 0o6755), ALLOWED),  # no O_CREAT: the mode means nothing
    ("openat", (AT_FDCWD, 0, O_CREAT, 0o644), ALLOWED),
    ("openat", (AT_FDCWD, 0, O_CREAT | 1, 0o4755), errno.EPERM),
    ("openat", (AT_FDCWD, 0, O_TMPFILE, 0o2755), errno.EPERM),
    ("openat2", (), errno.ENOSYS),
    ("fchmodat", (AT_FDCWD, 0, 0o755), ALLOWED),
    ("fchmodat", (AT_FDCWD, 0, 0o1777), ALLOWED),
    ("fchmodat", (AT_FDCWD, 0, 0o4755), errno.EPERM),
    ("fchmod", (3, 0o2755), errno.EPERM),
    ("fchmodat2", (AT_FDCWD, 0, 0o4755, 0), errno.EPERM),
    ("mkdirat", (AT_FDCWD, 0, 0o2755), errno.EPERM),
    ("mknodat", (AT_FDCWD, 0, 0o104755), errno.EPERM),
    ("socket", (1, 1), ALLOWED),
    ("socket", (2, 1), ALLOWED),
    ("socket", (10, 1), ALLOWED),
    ("socket", (16, 3), ALLOWED),
    ("socket", (40, 1), errno.EAFNOSUPPORT),
    ("socket", (38, 5), errno.EAFNOSUPPORT),
    ("socket", (17, 3), errno.EAFNOSUPPORT),
    ("socketpair", (1, 1), ALLOWED),
    ("socketpair", (30, 1), errno.EAFNOSUPPORT),
    ("ioctl", (0, 0x5401), ALLOWED),
    ("ioctl", (0, 0x5412), errno.EPERM),
    ("ioctl", (0, 0xFFFFFFFF_00005412), errno.EPERM),  # the kernel looks at 32 bits only
    ("newer than the list", (), errno.ENOSYS),
    *((name, (), errno.EPERM) for name in ("ptrace", "mount", "unshare", "setns", "bpf", "keyctl", "io_uring_setup")),
]


def _answer(program: bytes, number: int, arch: int, arguments: tuple[int, ...]) -> str | int:
    """Classic BPF, as far as the filter uses it."""
    data = struct.pack("<iIQ6Q", number, arch, 0, *(*arguments, *[0] * (6 - len(arguments))))
    position = accumulator = 0
    while True:
        code, if_true, if_false, value = struct.unpack_from("<HBBI", program, position * 8)
        position += 1
        if code == seccomp.LOAD:
            (accumulator,) = struct.unpack_from("<I", data, value)
        elif code == seccomp.AND:
            accumulator &= value
        elif code == seccomp.JUMP_EQUAL:
            position += if_true if accumulator == value else if_false
        elif code == seccomp.JUMP_GREATER:
            position += if_true if accumulator > value else if_false
        else:
            assert code == seccomp.RETURN
            return _named(value)


def _named(value: int) -> str | int:
    if value & 0xFFFF0000 == seccomp.ERRNO:
        return value & 0xFFFF
    return {seccomp.ALLOW: ALLOWED, seccomp.KILL_PROCESS: "killed"}[value]


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize(("name", "arguments", "answer"), EXPECTED)
def test_each_call_gets_its_answer(machine: str, name: str, arguments: tuple[int, ...], answer: str | int) -> None:
    number = CALLS[name][list(seccomp.AUDIT_ARCH).index(machine)]
    assert _answer(seccomp.program(machine), number, seccomp.AUDIT_ARCH[machine], arguments) == answer


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_numbers_of_another_architecture_end_the_process(machine: str) -> None:
    i386 = 0x40000003
    assert _answer(seccomp.program(machine), 1, i386, ()) == "killed"


def test_the_second_table_of_x86_64_does_not_exist() -> None:
    number = CALLS["x32 read"][0]
    assert _answer(seccomp.program("x86_64"), number, seccomp.AUDIT_ARCH["x86_64"], ()) == errno.ENOSYS


def test_an_unknown_architecture_gets_no_sandbox() -> None:
    with pytest.raises(NotSent, match="no system call table for riscv64"):
        seccomp.program("riscv64")


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_program_is_one_that_the_kernel_takes(machine: str) -> None:
    assert 0 < len(seccomp.program(machine)) // 8 <= 4096  # BPF_MAXINSNS

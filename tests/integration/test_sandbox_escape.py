"""What a hostile command tries to get out of the sandbox, and what it meets."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from runs.boundary.sandbox import run
from tests.sandbox_commands import python, shell

SYSCALL = "import ctypes, os; c = ctypes.CDLL(None, use_errno=True)\n"


@pytest.mark.parametrize(
    ("number", "arguments", "answer"),
    [
        (165, "b'tmpfs', b'/tmp', b'tmpfs', 0, 0", errno.EPERM),  # mount
        (166, "b'/workspace', 0", errno.EPERM),  # umount2
        (272, "0x10000000", errno.EPERM),  # unshare(CLONE_NEWUSER)
        (56, "0x10000000 | 17, 0, 0, 0, 0", errno.EPERM),  # clone(CLONE_NEWUSER)
        (435, "0, 0", errno.ENOSYS),  # clone3
        (101, "16, 1, 0, 0", errno.EPERM),  # ptrace(PTRACE_ATTACH, 1)
        (310, "1, 0, 0, 0, 0, 0", errno.EPERM),  # process_vm_readv
        (425, "1, 0", errno.EPERM),  # io_uring_setup
        (321, "0, 0, 0", errno.EPERM),  # bpf
        (298, "0, 0, -1, -1, 0", errno.EPERM),  # perf_event_open
        (323, "0", errno.EPERM),  # userfaultfd
        (250, "0, 0", errno.EPERM),  # keyctl
        (304, "0, 0, 0", errno.EPERM),  # open_by_handle_at
        (161, "b'/workspace'", errno.EPERM),  # chroot
        (428, "-100, b'/', 1", errno.EPERM),  # open_tree
        (437, "-100, b'/', 0, 0", errno.ENOSYS),  # openat2
        (2000, "0", errno.ENOSYS),  # nobody knows it yet
    ],
)
async def test_a_denied_system_call_is_denied_by_the_kernel(
    number: int, arguments: str, answer: int, tmp_path: Path
) -> None:
    if os.uname().machine != "x86_64":
        number = -1  # the numbers above are x86_64's; the unit test runs both tables
    result = await run(python(f"{SYSCALL}print(c.syscall({number}, {arguments}), ctypes.get_errno())", tmp_path))
    assert result.stdout.split() == [b"-1", str(answer if number >= 0 else errno.ENOSYS).encode()]


@pytest.mark.parametrize("family", ["AF_VSOCK", "AF_ALG", "AF_PACKET", "AF_BLUETOOTH", "AF_CAN"])
async def test_only_ordinary_sockets_exist(family: str, tmp_path: Path) -> None:
    result = await run(python(f"import socket; socket.socket(socket.{family}, socket.SOCK_RAW)", tmp_path))
    assert b"Address family not supported" in result.stderr


async def test_ordinary_programs_work(tmp_path: Path) -> None:
    script = (
        "git --version"
        " && python3 -c 'from threading import Thread; t = Thread(target=print, args=(1,)); t.start(); t.join()'"
        " && seq 3 | xargs -n1 echo | sort -r | awk '{print $1}' && tar cf /tmp/a.tar /usr/share/doc/bash && id -un"
    )
    result = await run(shell(script, tmp_path))
    assert result.exit_code == 0, result.stderr
    assert result.stdout.endswith(b"1\n3\n2\n1\nsandbox\n")


async def test_it_has_no_rights_and_gets_none(tmp_path: Path) -> None:
    status = (await run(shell("cat /proc/self/status", tmp_path))).stdout.decode()
    facts = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert {facts[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
    assert facts["NoNewPrivs"] == "1"
    assert facts["Seccomp"] == "2"
    assert facts["Uid"].split() == ["1000"] * 4


async def test_root_is_not_to_be_had(tmp_path: Path) -> None:
    script = "for p in su sudo pkexec newuidmap mount; do $p -h >/dev/null 2>&1; done; su -c id; sudo -n id; id -u"
    result = await run(shell(script, tmp_path))
    assert result.stdout == b"1000\n"


@pytest.mark.parametrize(
    "place", ["/usr/x", "/usr/bin/x", "/etc/x", "/etc/passwd", "/x", "/dev/x", "/proc/sys/kernel/hostname"]
)
async def test_nothing_but_workspace_and_temporary_folders_can_be_written(place: str, tmp_path: Path) -> None:
    result = await run(shell(f"echo x > {place}", tmp_path))
    assert result.exit_code != 0
    assert not Path("/usr/x").exists()


async def test_what_stands_in_tmp_is_gone_with_the_command(tmp_path: Path) -> None:
    await run(shell("echo x > /tmp/left; echo x > /dev/shm/left", tmp_path))
    result = await run(shell("ls /tmp /dev/shm", tmp_path))
    assert b"left" not in result.stdout


@pytest.mark.parametrize(
    "attempt",
    [
        "chmod 4755 tool",
        "chmod 2755 tool",
        "python3 -c \"import os; os.chmod('tool', 0o6755)\"",
        "python3 -c \"import os; os.fchmod(os.open('tool', os.O_RDWR), 0o4755)\"",
        "python3 -c \"import os; os.open('made', os.O_CREAT | os.O_RDWR, 0o4755)\"",
        "python3 -c \"import os; os.open('.', os.O_TMPFILE | os.O_RDWR, 0o4755)\"",
        "python3 -c \"import os; os.mknod('made', 0o104755)\"",
        "mkdir -m 2775 made",
        "install -m 4755 tool made",
        "cp -p /usr/bin/passwd made",
    ],
)
async def test_no_set_id_file_comes_to_stand_in_the_workspace(attempt: str, tmp_path: Path) -> None:
    """On disk it would belong to the kernel's user."""
    await run(shell(f"touch tool; {attempt}", tmp_path))
    modes = [entry.lstat().st_mode for entry in (tmp_path / "workspace").iterdir()]
    assert [mode for mode in modes if mode & (stat.S_ISUID | stat.S_ISGID)] == []


async def test_devices_cannot_be_made(tmp_path: Path) -> None:
    result = await run(shell("mknod disk b 254 0", tmp_path))
    assert result.exit_code != 0


async def test_it_cannot_end_what_it_cannot_see(tmp_path: Path) -> None:
    result = await run(shell(f"kill -9 {os.getpid()}; kill -9 -1; echo still here", tmp_path))
    assert os.getpid() > 0
    assert result.exit_code is not None


async def test_an_attack_on_its_own_first_process_ends_only_itself(tmp_path: Path) -> None:
    """The first process is bwrap and runs as the same uid; whatever becomes of it, the report still comes."""
    script = """
import os
for descriptor in os.listdir("/proc/1/fd"):
    try:
        os.write(os.open(f"/proc/1/fd/{descriptor}", os.O_WRONLY), b"x" * 8)
    except OSError as error:
        print(error)
"""
    result = await run(python(script, tmp_path))
    assert result.exit_code is not None

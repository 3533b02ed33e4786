"""Each limit of a sandboxed command holds, on this machine, against a command that tries to pass it."""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
import time
from pathlib import Path

import pytest

from runs.boundary.contracts import NotSent
from runs.boundary.sandbox import SandboxLimits, capabilities, run
from tests.sandbox_adapter import answered
from tests.sandbox_commands import cgroups_of, command, dispatch, marker, processes_with, python, shell

MEBIBYTE = 1024 * 1024

HOG = "x=[]\nfor i in range(64): x.append(b'x' * (8 << 20))\nprint('all of it')"
FORKS = """
import os, time
made = 0
try:
    for _ in range(500):
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        made += 1
except OSError:
    pass
print(made, flush=True)
os._exit(0)
"""
BOMB = """
import os
while True:
    try:
        os.fork()
    except OSError:
        pass
"""


async def test_a_memory_hog_is_ended_and_said_to_be_one(tmp_path: Path) -> None:
    limits = SandboxLimits(wall_seconds=20, memory_bytes=96 * MEBIBYTE)
    result = await run(python(HOG, tmp_path, limits=limits))
    assert b"all of it" not in result.stdout
    assert result.exit_code != 0
    if capabilities().cgroup != "none":
        assert result.out_of_memory
        assert result.peak_memory_bytes is not None
        assert result.peak_memory_bytes <= 96 * MEBIBYTE


async def test_memory_is_limited_for_the_whole_tree(tmp_path: Path) -> None:
    if capabilities().cgroup == "none":
        with pytest.raises(NotSent, match="tree_limits demanded"):
            await run(shell("true", tmp_path, demands=frozenset({"tree_limits"})))
        return
    part = "x = b'x' * (32 << 20); import time; time.sleep(3)"
    script = f'for i in 1 2 3 4 5 6; do python3 -c "{part}" & done; wait'
    result = await run(shell(script, tmp_path, limits=SandboxLimits(wall_seconds=20, memory_bytes=96 * MEBIBYTE)))
    assert result.out_of_memory


async def test_tmp_counts_as_memory_and_has_an_end(tmp_path: Path) -> None:
    limits = SandboxLimits(wall_seconds=20, temporary_bytes_max=2 * MEBIBYTE)
    result = await run(
        shell("for d in /tmp /dev/shm; do head -c 4000000 /dev/zero > $d/x; done", tmp_path, limits=limits)
    )
    assert result.stderr.count(b"No space left on device") == 2


async def test_processes_have_an_end(tmp_path: Path) -> None:
    result = await run(python(FORKS, tmp_path, limits=SandboxLimits(wall_seconds=20, processes_max=24)))
    margin = 0 if capabilities().cgroup != "none" or os.geteuid() == 0 else 10  # our own processes count with it there
    assert 10 <= int(result.stdout) <= 24 + margin


async def test_a_fork_bomb_is_ended_by_the_time_limit_and_leaves_nothing(tmp_path: Path) -> None:
    word = marker()
    limits = SandboxLimits(wall_seconds=1.5, processes_max=100)
    asked = python(f"# {word}\n{BOMB}", tmp_path, limits=limits)
    result = await run(asked)
    assert result.timed_out
    assert processes_with(word) == []
    assert cgroups_of(asked.operation_id) == []


async def test_a_flood_is_counted_and_bounded(tmp_path: Path) -> None:
    script = "echo first; head -c 30000000 /dev/zero | tr '\\0' x; echo; echo last; head -c 3000000 /dev/zero >&2"
    result = await run(shell(script, tmp_path, limits=SandboxLimits(wall_seconds=20, output_bytes_max=1000)))
    assert result.truncated
    assert result.stdout_bytes_total == 30_000_012
    assert result.stderr_bytes_total == 3_000_000
    assert result.stdout.startswith(b"first\nxxx")
    assert result.stdout.endswith(b"xxx\nlast\n")
    assert len(result.stdout) < 1100


async def test_an_endless_flood_does_not_keep_the_worker_from_its_work(tmp_path: Path) -> None:
    longest_pause = 0.0
    task = asyncio.create_task(run(shell("yes", tmp_path, limits=SandboxLimits(wall_seconds=2))))
    while not task.done():
        before = time.monotonic()
        await asyncio.sleep(0.01)
        longest_pause = max(longest_pause, time.monotonic() - before)
    assert (await task).timed_out
    assert longest_pause < 0.5


async def test_a_file_has_a_largest_size(tmp_path: Path) -> None:
    result = await run(
        shell(
            "head -c 5000000 /dev/zero > big", tmp_path, limits=SandboxLimits(wall_seconds=20, file_bytes_max=MEBIBYTE)
        )
    )
    assert result.exit_code != 0
    assert (tmp_path / "workspace" / "big").stat().st_size <= MEBIBYTE


async def test_open_files_have_an_end(tmp_path: Path) -> None:
    script = "x = [open('/dev/null') for _ in range(200)]"
    result = await run(python(script, tmp_path, limits=SandboxLimits(wall_seconds=20, open_files_max=64)))
    assert b"Too many open files" in result.stderr


async def test_a_busy_loop_has_an_end(tmp_path: Path) -> None:
    started = time.monotonic()
    result = await run(python("while True: pass", tmp_path, limits=SandboxLimits(wall_seconds=20, cpu_seconds=1)))
    assert result.exit_code == 128 + 24  # SIGXCPU
    assert time.monotonic() - started < 15


async def test_a_command_that_fills_the_disk_is_ended(tmp_path: Path) -> None:
    status = os.statvfs(tmp_path)
    floor = status.f_bavail * status.f_frsize - 64 * MEBIBYTE
    limits = SandboxLimits(wall_seconds=20, disk_free_bytes_min=floor)
    result = await run(
        shell("i=0; while :; do i=$((i+1)); head -c 20000000 /dev/zero > f$i; done", tmp_path, limits=limits)
    )
    assert result.disk_low
    assert result.exit_code is None


async def test_a_full_disk_starts_nothing(tmp_path: Path) -> None:
    with pytest.raises(NotSent, match="bytes free"):
        await run(shell("true", tmp_path, limits=SandboxLimits(disk_free_bytes_min=2**52)))


async def test_stdin_arrives_whole_and_ends(tmp_path: Path) -> None:
    text = secrets.token_bytes(3_000_000)
    result = await run(shell("sha256sum", tmp_path, stdin=text))
    assert result.stdout.split()[0].decode() == hashlib.sha256(text).hexdigest()


async def test_a_command_that_reads_no_stdin_ends_all_the_same(tmp_path: Path) -> None:
    result = await run(shell("echo done", tmp_path, stdin=b"x" * 3_000_000))
    assert (result.exit_code, result.stdout) == (0, b"done\n")


async def test_output_that_is_no_text_is_visible_in_the_result(tmp_path: Path) -> None:
    configuration = {"argv": ["/bin/sh", "-c", "printf 'a\\000b\\377c\\n'"]}
    result = await answered(dispatch(tmp_path, configuration))
    assert result.text.splitlines()[2] == "a\\x00b\\xffc"


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (("/no/such/program",), "could not be started: .*/no/such/program: No such file or directory"),
        ((), "the command is empty"),
        (("echo", "a\0b"), "NUL"),
        (("echo", "\ud800"), "no valid Unicode"),
        (("echo", "x" * 200_000), "more than 131071 bytes"),
        (("echo", *["x" * 100_000] * 20), "all have more than 1048576"),
    ],
)
async def test_a_command_that_cannot_start_was_not_sent(argv: tuple[str, ...], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(NotSent, match=sentence):
        await run(command(argv, tmp_path))


async def test_the_mark_is_set_when_the_sandbox_stands_and_before_the_command_runs(tmp_path: Path) -> None:
    trace = tmp_path / "workspace" / "trace"
    seen = []

    async def mark() -> None:
        await asyncio.sleep(0.2)  # time in which a command that did not wait would write
        seen.append(trace.exists())

    await run(shell("echo ran > trace", tmp_path), before_start=mark)
    assert seen == [False]
    assert trace.read_text() == "ran\n"


async def test_a_mark_that_cannot_be_set_lets_nothing_happen(tmp_path: Path) -> None:
    async def mark() -> None:
        raise ConnectionError("the store is down")

    asked = shell("echo ran > trace", tmp_path)
    with pytest.raises(ConnectionError, match="the store is down"):
        await run(asked, before_start=mark)
    assert not (tmp_path / "workspace" / "trace").exists()
    assert cgroups_of(asked.operation_id) == []


async def test_many_at_once_do_not_meet(tmp_path: Path) -> None:
    asked = [shell(f"echo {n}; ls /proc | grep -c '^[0-9]'; sleep 0.3", tmp_path) for n in range(8)]
    results = await asyncio.gather(*(run(one) for one in asked))
    assert [result.stdout.split()[0] for result in results] == [str(n).encode() for n in range(8)]
    assert {int(result.stdout.split()[1]) for result in results} <= {3, 4}


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    async def some() -> None:
        for script in ("true", "exit 3", "yes | head -c 1000000"):
            await run(shell(script, tmp_path, stdin=b"unread" * 100_000))

    asyncio.run(some())
    before = _open_descriptors()
    asyncio.run(some())
    assert _open_descriptors() == before


async def test_stdin_is_not_kept_open_by_a_command_that_never_reads(tmp_path: Path) -> None:
    before = _open_descriptors()
    limits = SandboxLimits(wall_seconds=0.5)
    assert (await run(shell("sleep 60", tmp_path, stdin=b"x" * 1_000_000, limits=limits))).timed_out
    assert _open_descriptors() <= before


def _open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))

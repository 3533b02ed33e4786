"""However a command, its worker or its sandbox ends: nothing of the command goes on, and what is known is told."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection
from pathlib import Path
from uuid import uuid4

import pytest

from runs.boundary.sandbox import SandboxCrashed, capabilities, run, sweep
from tests.sandbox_adapter import answered
from tests.sandbox_commands import cgroups_of, dispatch, marker, processes_with, shell, wait_for, workspace_in

CANCEL_SECONDS_MAX = 2.0
LATE_SECONDS = 1.0
ROUNDS = 8
START_SECONDS = 0.15  # of a sandbox
BEGINS_THEN_WRITES_LATE = f"echo begun >> out; (setsid sleep {LATE_SECONDS}; echo late >> out) & sleep 30; : "

WORKER = """
import asyncio, sys, time
from runs.boundary.sandbox import capabilities, run
from tests.sandbox_commands import Path, shell
script, folder, operation_id, hold = sys.argv[1:]
capabilities()
async def mark():
    print("standing", flush=True)
    if hold == "hold":
        await asyncio.sleep(60)
async def main():
    command = shell(script, Path(folder), operation_id=operation_id)
    print("starting", flush=True)
    await run(command, before_start=mark)
asyncio.run(main())
"""


class Worker:
    """A process that runs one command in a sandbox, to be killed."""

    def __init__(self, folder: Path, *, hold: bool = False) -> None:
        self.word, self.operation_id, self.out = marker(), str(uuid4()), workspace_in(folder) / "out"
        arguments = [BEGINS_THEN_WRITES_LATE + self.word, str(folder), self.operation_id, "hold" if hold else "go"]
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER, *arguments], stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]
        )

    def until(self, line: bytes) -> None:
        assert self.process.stdout is not None
        while (said := self.process.stdout.readline()) != line + b"\n":
            assert said, f"the worker ended before it said {line!r}"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def guards(self) -> list[int]:
        return _guards(self.process.pid)


def _none(_: Collection[str]) -> list[str]:
    """As an installation answers that knows none of them, or for which none is over."""
    return []


def _all(operation_ids: Collection[str]) -> Collection[str]:
    return operation_ids


def _guards(parent: int) -> list[int]:
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [int(pid) for pid in children if b"launcher.py" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def _nothing_left(worker: Worker) -> bool:
    return processes_with(worker.word) == [] and cgroups_of(worker.operation_id) == []


def test_a_killed_worker_takes_its_command_along(tmp_path: Path) -> None:
    worker = Worker(tmp_path)
    worker.until(b"standing")
    wait_for(worker.out.exists)
    worker.kill()
    assert wait_for(lambda: _nothing_left(worker)) < CANCEL_SECONDS_MAX
    time.sleep(LATE_SECONDS + 0.3)
    assert worker.out.read_text() == "begun\n"


def test_a_worker_killed_before_the_command_began_lets_it_never_begin(tmp_path: Path) -> None:
    worker = Worker(tmp_path, hold=True)
    worker.until(b"standing")
    assert processes_with(worker.word) != []
    worker.kill()
    wait_for(lambda: _nothing_left(worker))
    time.sleep(0.3)
    assert not worker.out.exists()


def test_a_worker_killed_at_any_moment_of_the_start_leaves_nothing(tmp_path: Path) -> None:
    """bwrap's own --die-with-parent does not cover its set-up; the guard does."""
    workers = []
    for number in range(ROUNDS):
        worker = Worker(tmp_path / str(number))
        worker.until(b"starting")
        time.sleep(number * START_SECONDS / ROUNDS)
        worker.kill()
        workers.append(worker)
    for worker in workers:
        wait_for(lambda worker=worker: processes_with(worker.word) == [])
    sweep(_none)  # one killed between making a cgroup and starting the guard leaves it, empty
    assert [worker.operation_id for worker in workers if not _nothing_left(worker)] == []
    time.sleep(LATE_SECONDS + 0.3)
    assert [
        worker.out.read_text() for worker in workers if worker.out.exists() and "late" in worker.out.read_text()
    ] == []


def test_the_sweep_removes_what_worker_and_guard_left(tmp_path: Path) -> None:
    worker = Worker(tmp_path)
    worker.until(b"standing")
    wait_for(worker.out.exists)
    guards = worker.guards()
    for pid in guards:
        os.kill(pid, signal.SIGSTOP)
    worker.kill()
    for pid in guards:
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: processes_with(worker.word) == [])
    if capabilities().cgroup != "none":
        assert cgroups_of(worker.operation_id) != []
    wait_for(lambda: sweep(_none) is not None and cgroups_of(worker.operation_id) == [])
    assert worker.operation_id not in sweep(_all)
    assert worker.out.read_text() == "begun\n"


async def test_the_sweep_leaves_a_living_workers_sandbox_alone(tmp_path: Path) -> None:
    asked = shell("touch begun; sleep 0.7; echo whole", tmp_path)
    task = asyncio.create_task(run(asked))
    await _exists(tmp_path / "workspace" / "begun")
    assert asked.operation_id not in await asyncio.to_thread(sweep, _all)
    assert (await task).stdout == b"whole\n"


async def test_the_sweep_ends_the_sandbox_of_an_operation_that_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if capabilities().cgroup == "none":
        return  # without a cgroup only the guard knows the sandbox, and it does its work
    monkeypatch.setattr("runs.boundary.sandbox.sweeping.AGE_SECONDS_MIN", 0.0)
    asked = shell("touch begun; sleep 30", tmp_path)
    task = asyncio.create_task(run(asked))
    await _exists(tmp_path / "workspace" / "begun")
    assert asked.operation_id not in await asyncio.to_thread(sweep, _none)
    assert await asyncio.to_thread(sweep, lambda ids: {asked.operation_id} & set(ids)) == [asked.operation_id]
    try:
        assert (await task).exit_code == 128 + 9  # the command was killed before its sandbox
    except SandboxCrashed as crash:
        assert crash.result.exit_code is None  # noqa: PT017  the other way round


@pytest.mark.parametrize("after_seconds", [0.0, 0.005, 0.02, 0.05, 0.1, 0.3, 0.8])
async def test_cancellation_ends_the_tree_and_goes_on(after_seconds: float, tmp_path: Path) -> None:
    word = marker()
    asked = shell(BEGINS_THEN_WRITES_LATE + word, tmp_path)
    task = asyncio.create_task(run(asked))
    await asyncio.sleep(after_seconds)
    started = time.monotonic()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert time.monotonic() - started < CANCEL_SECONDS_MAX
    assert processes_with(word) == []
    assert cgroups_of(asked.operation_id) == []
    out = tmp_path / "workspace" / "out"
    await asyncio.sleep(LATE_SECONDS + 0.2)
    assert not out.exists() or out.read_text() == "begun\n"


async def test_a_second_cancellation_does_not_leave_anything_behind(tmp_path: Path) -> None:
    word = marker()
    task = asyncio.create_task(run(shell(BEGINS_THEN_WRITES_LATE + word, tmp_path)))
    await _exists(tmp_path / "workspace" / "out")
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert processes_with(word) == []


async def test_the_tool_beats_while_its_command_runs_and_is_cancelled_in_time(tmp_path: Path) -> None:
    beats: list[float] = []
    word = marker()
    asked = dispatch(
        tmp_path,
        {"argv": ["/bin/sh", "-c", f"touch begun; sleep 30; : {word}"]},
        heartbeat=lambda *_: beats.append(time.monotonic()),
    )
    task = asyncio.create_task(answered(asked))
    await _exists(tmp_path / "workspace" / "begun")
    await asyncio.sleep(1.2)
    started = time.monotonic()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert time.monotonic() - started < CANCEL_SECONDS_MAX
    assert len(beats) >= 2
    assert processes_with(word) == []


async def test_a_sandbox_that_dies_is_an_unclear_outcome_with_the_output_so_far(tmp_path: Path) -> None:
    word = marker()
    task = asyncio.create_task(run(shell(f"echo some; touch begun; sleep 30; : {word}", tmp_path)))
    await _exists(tmp_path / "workspace" / "begun")
    (guard,) = _guards(os.getpid())
    (bwrap,) = map(int, Path(f"/proc/{guard}/task/{guard}/children").read_text().split())
    os.kill(bwrap, signal.SIGKILL)
    with pytest.raises(SandboxCrashed, match="the sandbox ended while the command ran") as crash:
        await task
    assert crash.value.result.stdout == b"some\n"
    assert processes_with(word) == []


async def test_a_guard_that_dies_takes_the_sandbox_along(tmp_path: Path) -> None:
    word = marker()
    task = asyncio.create_task(run(shell(f"echo some; touch begun; sleep 30; : {word}", tmp_path)))
    await _exists(tmp_path / "workspace" / "begun")
    (guard,) = _guards(os.getpid())
    os.kill(guard, signal.SIGKILL)
    with pytest.raises(SandboxCrashed):
        await task
    assert processes_with(word) == []


async def test_a_command_killed_by_a_signal_says_which(tmp_path: Path) -> None:
    assert (await run(shell("kill -9 $$", tmp_path))).exit_code == 128 + 9
    assert (await run(shell("kill -11 $$", tmp_path))).exit_code == 128 + 11


async def _exists(path: Path) -> None:
    async with asyncio.timeout(10):
        while not path.exists():
            await asyncio.sleep(0.01)

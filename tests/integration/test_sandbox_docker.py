"""The docker driver on real engines: the same contract as bubblewrap's, and a container that outlives its worker."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from runs.boundary.contracts import NotSent
from runs.boundary.sandbox import SandboxCommand, SandboxLimits, SandboxResult, container, engine
from runs.boundary.sandbox.docker import Docker
from runs.boundary.sandbox.uids import UID_FIRST
from tests import container_engine
from tests.sandbox_commands import marker, processes_with, wait_for

SOURCE = "test-installation"
QUICK = SandboxLimits(wall_seconds=30, memory_bytes=64 * 1024 * 1024, processes_max=24)
CANCEL_SECONDS_MAX = 2.0

WORKER = """
import asyncio, sys
from pathlib import Path
from runs.boundary.sandbox.docker import Docker
from tests.integration.test_sandbox_docker import in_container, ran
program, folder, operation_id, script = sys.argv[1:]
driver = Docker(program, "agent-kernel-test:1", Path(folder) / "trials")
asyncio.run(ran(driver, in_container(script, Path(folder), operation_id=operation_id)))
"""


@pytest.fixture(scope="module", params=["docker", "podman"])
def driver(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Docker]:
    with pytest.MonkeyPatch.context() as environment:
        found = container_engine.driver(request.param, tmp_path_factory.mktemp("engine"), environment)
        yield found
        asyncio.run(found.sweep(SOURCE, lambda operation_ids: operation_ids))


def in_container(script: str, folder: Path, **given: Any) -> SandboxCommand:
    folder.chmod(0o755)
    workspace = folder / "workspace"
    workspace.mkdir(exist_ok=True)
    if os.geteuid() == 0:
        os.chown(workspace, UID_FIRST, UID_FIRST)
    defaults: dict[str, Any] = {"operation_id": str(uuid4()), "limits": QUICK, "source": SOURCE}
    return SandboxCommand(("/bin/sh", "-c", script), str(workspace), str(folder), **{**defaults, **given})


async def ran(driver: Docker, command: SandboxCommand, heard: list[SandboxResult] | None = None) -> SandboxResult:
    async def nothing() -> None:
        return None

    on_cancelled = heard.append if heard is not None else lambda _: None
    return await driver.run(command, before_start=nothing, on_cancelled=on_cancelled)


def inspected(driver: Docker, operation_id: str) -> engine.Container | None:
    return asyncio.run(engine.inspect(driver.program, container.name_of(operation_id)))


async def test_what_the_engine_enforces_was_found_by_trying(driver: Docker) -> None:
    found = driver.capabilities()
    assert (found.driver, found.cgroup, found.problems) == ("docker", "engine", ())
    assert found.sentence().startswith("docker ")


async def test_the_command_sees_nothing_of_the_worker(driver: Docker, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("A_SECRET", "canary-secret")
    looks = (
        "id; env; cat /proc/1/environ; grep ^Cap /proc/self/status; ls /sys/class/net; touch /x; touch /workspace/made"
    )
    result = await ran(driver, in_container(looks.replace("grep", "busybox grep"), tmp_path))
    said = result.stdout.decode()
    assert f"uid={tmp_path.joinpath('workspace').stat().st_uid}" in said
    assert "canary-secret" not in said
    assert "OPERATION_ID=" in said
    assert "HOME=/tmp" in said
    assert [line.split()[1] for line in said.splitlines() if line.startswith("CapEff")] == ["0" * 16]
    assert b"/x: Read-only file system" in result.stderr
    assert (tmp_path / "workspace" / "made").exists()


async def test_it_reaches_no_network(driver: Docker, tmp_path: Path) -> None:
    result = await ran(driver, in_container("wget -T 2 -O - http://192.0.2.1/ || echo refused", tmp_path))
    assert result.stdout == b"refused\n"


async def test_exit_code_both_outputs_and_stdin(driver: Docker, tmp_path: Path) -> None:
    result = await ran(driver, in_container("cat; echo oops >&2; exit 3", tmp_path, stdin=b"given\n"))
    assert (result.exit_code, result.stdout, result.stderr) == (3, b"given\n", b"oops\n")


async def test_the_time_limit_ends_the_whole_tree(driver: Docker, tmp_path: Path) -> None:
    word = marker()
    script = f"echo begun; (setsid sh -c 'sleep 60; : {word}' &); sleep 60; : {word}"
    result = await ran(driver, in_container(script, tmp_path, limits=replace(QUICK, wall_seconds=1.0)))
    assert (result.timed_out, result.exit_code, result.stdout) == (True, None, b"begun\n")
    assert processes_with(word) == []


async def test_a_cancellation_ends_it_within_two_seconds(driver: Docker, tmp_path: Path) -> None:
    word, heard = marker(), []
    command = in_container(f"echo so far; touch begun; sleep 60; : {word}", tmp_path)
    task = asyncio.create_task(ran(driver, command, heard))
    await _exists(tmp_path / "workspace" / "begun")
    started = time.monotonic()
    task.cancel()
    await asyncio.to_thread(wait_for, lambda: _runs_only_here(word))
    assert time.monotonic() - started < CANCEL_SECONDS_MAX
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [result.stdout for result in heard] == [b"so far\n"]


async def test_memory_and_processes_are_limited_for_the_tree(driver: Docker, tmp_path: Path) -> None:
    greedy = await ran(driver, in_container("head -c 300000000 /dev/zero | tail -c 290000000", tmp_path))
    assert greedy.exit_code != 0 or greedy.out_of_memory
    forks = "i=0; while [ $i -lt 60 ]; do sleep 5 & i=$((i+1)); done; wait"
    assert b"can't fork" in (await ran(driver, in_container(forks, tmp_path))).stderr


async def test_output_is_bounded_and_counted(driver: Docker, tmp_path: Path) -> None:
    result = await ran(driver, in_container("head -c 3000000 /dev/zero", tmp_path))
    assert (result.stdout_bytes_total, result.truncated) == (3_000_000, True)
    assert len(result.stdout) < 300_000


async def test_protected_names_are_read_only_and_new_ones_are_set_aside(driver: Docker, tmp_path: Path) -> None:
    command = in_container("touch .git/hook; mkdir sub sub/.git", tmp_path)
    (tmp_path / "workspace" / ".git").mkdir()
    result = await ran(driver, command)
    assert b".git/hook: Read-only file system" in result.stderr
    assert not (tmp_path / "workspace" / "sub" / ".git").exists()
    assert "sub/.git was made by the command" in result.notes[0]


async def test_what_cannot_be_executed_was_not_sent(driver: Docker, tmp_path: Path) -> None:
    command = replace(in_container("", tmp_path), argv=("no-such-program",))
    with pytest.raises(NotSent, match=r"could not be started: .*no-such-program"):
        await ran(driver, command)
    assert (await driver.look(command.operation_id)).state == "gone"


async def test_an_image_that_is_not_there_is_named_and_never_pulled(driver: Docker, tmp_path: Path) -> None:
    missing = Docker(driver.program, "no-such-image:1", tmp_path / "trials")
    assert "does not give the image no-such-image:1" in missing.capabilities().unavailable
    with pytest.raises(NotSent, match="sandbox unavailable"):
        await ran(missing, in_container("true", tmp_path))
    with pytest.raises(NotSent, match="the container cannot be made"):
        await ran(driver, in_container("true", tmp_path, image="no-such-image:1"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a folder of root")
async def test_a_workspace_of_root_is_refused(driver: Docker, tmp_path: Path) -> None:
    command = in_container("true", tmp_path)
    os.chown(tmp_path / "workspace", 0, 0)
    with pytest.raises(NotSent, match="belongs to root"):
        await ran(driver, command)


def test_a_command_goes_on_when_its_worker_dies_and_its_end_can_be_asked_for(driver: Docker, tmp_path: Path) -> None:
    operation_id, out = str(uuid4()), tmp_path / "workspace" / "begun"
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER, driver.program, str(tmp_path), operation_id, "touch begun; sleep 3; echo done"],
        cwd=Path(__file__).parents[2], start_new_session=True,
    )  # fmt: skip
    wait_for(out.exists, 60)
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    assert asyncio.run(driver.look(operation_id)).state == "running"
    wait_for(lambda: asyncio.run(driver.look(operation_id)).state == "ended", 30)
    left = asyncio.run(driver.look(operation_id))
    assert left.result is not None
    assert (left.result.exit_code, left.result.stdout) == (0, b"done\n")


async def test_another_attempt_takes_the_place_of_the_container_that_is_left(driver: Docker, tmp_path: Path) -> None:
    first = in_container("echo one", tmp_path)
    await ran(driver, first)
    second = replace(first, argv=("/bin/sh", "-c", "echo two"), attempt=2)
    assert (await ran(driver, second)).stdout == b"two\n"
    left = await driver.look(first.operation_id)
    assert left.result is not None
    assert left.result.stdout == b"two\n"


async def test_a_killed_command_is_told_from_one_that_ended(driver: Docker, tmp_path: Path) -> None:
    command = in_container("touch begun; sleep 60", tmp_path)
    task = asyncio.create_task(ran(driver, command))
    await _exists(tmp_path / "workspace" / "begun")
    task.cancel()
    await asyncio.wait({task})
    assert (await driver.look(command.operation_id)).state == "killed"


def test_the_sweep_removes_what_is_over_and_nothing_else(driver: Docker, tmp_path: Path) -> None:
    over, kept, foreign = (in_container("true", tmp_path, source=source) for source in (SOURCE, SOURCE, "another"))
    for command in (over, kept, foreign):
        asyncio.run(ran(driver, command))
    swept = asyncio.run(driver.sweep(SOURCE, lambda ids: {over.operation_id} & set(ids)))
    assert swept == [over.operation_id]
    there = [command.operation_id for command in (over, kept, foreign) if inspected(driver, command.operation_id)]
    assert there == [kept.operation_id, foreign.operation_id]
    asyncio.run(driver.sweep("another", lambda ids: ids))


async def test_the_sweep_ends_a_command_past_its_time_whose_worker_is_gone(
    driver: Docker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(container, "LATE_SECONDS", -60.0)
    command = in_container("touch begun; sleep 60", tmp_path)
    task = asyncio.create_task(ran(driver, command))
    await _exists(tmp_path / "workspace" / "begun")
    assert await driver.sweep(SOURCE, lambda _: []) == [command.operation_id]
    assert (await task).exit_code == container.KILLED_EXIT_CODE


def _runs_only_here(word: str) -> bool:
    """The engine's own processes may carry the command in their arguments for a moment longer."""
    ours = [pid for pid in processes_with(word) if _uid(pid) != os.geteuid()]
    return not ours


def _uid(pid: int) -> int:
    try:
        return Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        return os.geteuid()


async def _exists(path: Path) -> None:
    async with asyncio.timeout(60):
        while not path.exists():
            await asyncio.sleep(0.02)

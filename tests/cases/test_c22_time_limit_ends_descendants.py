"""C22. The time limit of a command ends everything that the command started, before the report is given."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from runs.boundary.sandbox import SandboxLimits, run
from tests.sandbox_adapter import answered
from tests.sandbox_commands import cgroups_of, dispatch, marker, processes_with, shell

LIMIT_SECONDS = 1.0
GRACE_SECONDS = 1.0  # from the limit to the report
START_SECONDS = 2.0  # of a sandbox on a busy machine; not part of the command's time
LATE_SECONDS = 2.5  # when a survivor would write its line

SURVIVORS = {
    "background child, parent exits": "(sleep {late}; echo late >> out; : {word}) & exit 0",
    "background child, parent waits": "(sleep {late}; echo late >> out; : {word}) & sleep 60",
    "new session": "setsid sh -c 'sleep {late}; echo late >> out; : {word}' & sleep 60",
    "double fork": "(setsid nohup sh -c 'sleep {late}; echo late >> out; : {word}' >/dev/null 2>&1 &) ; sleep 60",
    "ignores SIGTERM": "trap '' TERM HUP INT; (sleep {late}; echo late >> out; : {word}) & sleep 60; : {word}",
    "holds stdout": "(sleep {late}; echo late | tee -a out; : {word}) & exit 0",
}


@pytest.mark.parametrize("script", SURVIVORS.values(), ids=SURVIVORS.keys())
async def test_nothing_of_the_command_outlives_its_report(script: str, tmp_path: Path) -> None:
    word = marker()
    command = shell(
        script.format(late=LATE_SECONDS, word=word), tmp_path, limits=SandboxLimits(wall_seconds=LIMIT_SECONDS)
    )
    started = time.monotonic()
    result = await run(command)
    assert time.monotonic() - started < LIMIT_SECONDS + GRACE_SECONDS + START_SECONDS
    assert processes_with(word) == []
    assert cgroups_of(command.operation_id) == []
    assert result.timed_out == ("sleep 60" in script)
    await asyncio.sleep(LATE_SECONDS - LIMIT_SECONDS + 0.5)
    assert not (tmp_path / "workspace" / "out").exists()


async def test_the_result_says_timeout_with_the_output_so_far(tmp_path: Path) -> None:
    configuration = {"argv": ["/bin/sh", "-c", "{command}"], "limits": {"wall_seconds": LIMIT_SECONDS}}
    arguments = {"command": "echo begun; echo trouble >&2; sleep 60; echo never"}
    result = await answered(dispatch(tmp_path, configuration, arguments=arguments))
    assert result.is_error
    assert result.text.startswith("timeout after 1 s: the command was ended\n--- stdout, 6 bytes\nbegun\n")
    assert "trouble" in result.text
    assert "never" not in result.text


async def test_a_file_being_written_does_not_grow_after_the_report(tmp_path: Path) -> None:
    endless = "setsid sh -c 'while :; do echo line >> out; done' & sleep 60"
    await run(shell(endless, tmp_path, limits=SandboxLimits(wall_seconds=LIMIT_SECONDS)))
    size = (tmp_path / "workspace" / "out").stat().st_size
    await asyncio.sleep(0.5)
    assert size > 0
    assert (tmp_path / "workspace" / "out").stat().st_size == size

"""How a tool's configuration and a call's arguments become a command, and how a result reads."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from kernel_project.primitives import clock
from runs.boundary.contracts import NotSent
from runs.boundary.effects.sandbox import command_of, result_of
from runs.boundary.sandbox import SandboxLimits, SandboxResult
from tests.sandbox_commands import dispatch

SUCCESS = SandboxResult(
    exit_code=0, stdout=b"out\n", stderr=b"", stdout_bytes_total=4, stderr_bytes_total=0, truncated=False,
    timed_out=False, out_of_memory=False, disk_low=False, seconds=0.5, peak_memory_bytes=1,
)  # fmt: skip


def _argv(tmp_path: Path, argv: list[Any], **arguments: Any) -> tuple[str, ...]:
    return command_of(dispatch(tmp_path, {"argv": argv}, arguments=arguments)).argv


def test_an_argument_is_one_item_whatever_it_contains(tmp_path: Path) -> None:
    hostile = "a b; $(rm -rf /) 'x' \"y\" {other} | `id` \n -rf"
    assert _argv(tmp_path, ["/bin/echo", "{text}", "{other}"], text=hostile, other="o") == ("/bin/echo", hostile, "o")


def test_numbers_and_booleans_are_written_plainly(tmp_path: Path) -> None:
    assert _argv(tmp_path, ["x", "{a}", "{b}", "{c}"], a=2**60 + 1, b=1.5, c=True) == (
        "x",
        str(2**60 + 1),
        "1.5",
        "true",
    )


def test_braces_that_are_no_placeholder_stay(tmp_path: Path) -> None:
    argv = ["awk", "{print $1}", "{}", "{{name}}", "a{0}b", "x={unknown}"]
    assert _argv(tmp_path, argv, name="n") == ("awk", "{print $1}", "{}", "{name}", "a{0}b", "x={unknown}")


@pytest.mark.parametrize(
    ("argv", "arguments", "sentence"),
    [
        (
            ["x", "--file={path}"],
            {"path": "p"},
            r"the placeholder \{path\} in '--file=\{path\}' must be an item of its own",
        ),
        (["x", "{path}"], {}, "the argument 'path' is missing"),
        (["x", "{path}"], {"path": ["a", "b"]}, "the argument 'path' must be a string, a number or a boolean"),
        (["x", "{path}"], {"path": None}, "the argument 'path' must be a string, a number or a boolean"),
        ("ls -la", {}, "needs `argv` as a list of strings"),
        (["x", 1], {}, "needs `argv` as a list of strings"),
        (None, {}, "needs `argv` as a list of strings"),
    ],
)
def test_a_wrong_tool_or_call_is_refused_before_anything_happens(
    argv: Any, arguments: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(NotSent, match=sentence):
        command_of(dispatch(tmp_path, {"argv": argv}, arguments=arguments))


@pytest.mark.parametrize(
    "limits", [{"wall_seconds": 0}, {"memory_bytes": -1}, {"memory_bytes": "1"}, {"no_such": 1}, {"cpu_seconds": True}]
)
def test_wrong_limits_are_refused(limits: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(NotSent, match="the tool's `limits` are wrong"):
        command_of(dispatch(tmp_path, {"argv": ["x"], "limits": limits}))


def test_the_shortest_time_limit_wins(tmp_path: Path) -> None:
    configuration = {"argv": ["x"], "limits": {"wall_seconds": 50}}
    assert command_of(dispatch(tmp_path, configuration, timeout_seconds=20.0)).limits.wall_seconds == 20
    assert command_of(dispatch(tmp_path, configuration, timeout_seconds=90.0)).limits.wall_seconds == 50
    soon = clock.now() + timedelta(seconds=5)
    assert command_of(dispatch(tmp_path, configuration, deadline_at=soon)).limits.wall_seconds <= 5
    with pytest.raises(NotSent, match="the deadline of the operation has passed"):
        command_of(dispatch(tmp_path, configuration, deadline_at=clock.now()))


def test_success_reads_the_same_every_time() -> None:
    result = result_of(SUCCESS, SandboxLimits())
    assert result.text == "exit code: 0\n--- stdout, 4 bytes\nout\n--- stderr, 0 bytes"
    assert not result.is_error
    assert result.structured["exit_code"] == 0


@pytest.mark.parametrize(
    ("change", "first_line"),
    [
        ({"exit_code": 3}, "exit code: 3"),
        ({"exit_code": None, "timed_out": True}, "timeout after 60 s: the command was ended"),
        ({"exit_code": 137, "out_of_memory": True}, "out of memory (limit 536870912 bytes), exit code: 137"),
        ({"exit_code": 0, "out_of_memory": True}, "out of memory (limit 536870912 bytes), exit code: 0"),
        (
            {"exit_code": None, "disk_low": True},
            "the command was ended: less than 268435456 bytes are left on the disk",
        ),
    ],
)
def test_every_other_end_is_an_error_that_says_why(change: dict[str, Any], first_line: str) -> None:
    result = result_of(replace(SUCCESS, **change), SandboxLimits())
    assert result.is_error
    assert result.text.splitlines()[0] == first_line


def test_truncation_and_notes_are_told() -> None:
    result = result_of(replace(SUCCESS, truncated=True, notes=("sub/.git was made by the command",)), SandboxLimits())
    assert result.truncated
    assert result.text.endswith("--- note: sub/.git was made by the command")

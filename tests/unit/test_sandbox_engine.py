"""What the docker driver says to an engine and reads from it: against a stand-in that gives recorded answers.

The answers were recorded from Docker 20.10 and podman 4.3. This shows the words, not that an engine does what they ask:
tests/integration/test_sandbox_docker.py does, where an engine works.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from runs.boundary.contracts import NotSent, ProbeVerdict
from runs.boundary.effects.sandbox import answer_of
from runs.boundary.sandbox import SandboxCommand, SandboxLimits, container, docker, engine
from runs.boundary.sandbox.contracts import Left, SandboxCrashed
from runs.boundary.sandbox.docker import Docker
from runs.boundary.sandbox.engine import EngineSilent
from tests.engine_stand_in import BEGAN, CREATED, ENDED, EXITED, NEVER_BEGAN, NEVER_ENDED, RUNNING, StandIn

TRIAL_SAID = """Uid: 1000
CapEff: 0000000000000000
CapBnd: 0000000000000000
NoNewPrivs: 1
Seccomp: 2
memory 67108864
processes 32
network lo
root read-only
workspace writable
export HOME='/tmp'
export PATH='/usr/bin'
"""


@pytest.fixture
def stand_in(tmp_path: Path) -> StandIn:
    folder = tmp_path / "engine-folder"
    folder.mkdir()
    return StandIn(folder)


@pytest.fixture
def command(tmp_path: Path) -> SandboxCommand:
    workspace = tmp_path / "root" / "workspace"
    workspace.mkdir(parents=True)
    if os.geteuid() == 0:
        os.chown(workspace, 1000, 1000)
    return SandboxCommand(
        ("echo", "--network=host"),
        str(workspace),
        str(tmp_path / "root"),
        str(uuid4()),
        {"COLOUR": "red"},
        source="here",
    )


def ran(stand_in: StandIn, command: SandboxCommand) -> Any:
    async def nothing() -> None:
        return None

    driver = Docker(stand_in.program, "image:1", Path(command.workspace_root))
    return asyncio.run(driver._execute(command, nothing, lambda _: None))


def created(stand_in: StandIn) -> list[str]:
    return next(call for call in stand_in.calls() if call[0] == "create")


def value_of(call: list[str], option: str) -> list[str]:
    return [call[place + 1] for place, word in enumerate(call) if word == option]


def test_everything_is_taken_from_the_command_that_a_command_needs_not(stand_in, command) -> None:
    stand_in.inspects(EXITED, BEGAN, ENDED)
    stand_in.answers("start", "said", code=3)
    result = ran(stand_in, command)
    assert (result.exit_code, result.stdout) == (3, b"said\n")
    call = created(stand_in)
    for option, value in {
        "--network": "none", "--cap-drop": "ALL", "--security-opt": "no-new-privileges", "--user": user(command),
        "--pull": "never", "--memory": str(512 << 20), "--memory-swap": str(512 << 20), "--pids-limit": "128",
        "--cpus": "1", "--name": f"agent-kernel-{command.operation_id}", "--ipc": "private",
    }.items():  # fmt: skip
        assert value_of(call, option) == [value], option
    assert "--read-only" in call
    assert "--privileged" not in call
    assert call[-3:] == ["image:1", "echo", "--network=host"]


def user(command: SandboxCommand) -> str:
    status = Path(command.workspace).stat()
    return f"{status.st_uid}:{status.st_gid}"


def test_the_environment_goes_by_a_file_and_none_of_ours_goes_along(stand_in, command, monkeypatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://canary")
    stand_in.inspects(EXITED, BEGAN, ENDED)
    stand_in.answers("start", code=3)
    ran(stand_in, command)
    variables = dict(line.split("=", 1) for line in (stand_in.folder / "environment").read_text().splitlines())
    assert variables["COLOUR"] == "red"
    assert variables["OPERATION_ID"] == command.operation_id
    assert not any("red" in word for word in created(stand_in))
    assert "canary" not in (stand_in.folder / "environment-of-engine").read_text()


def test_the_labels_say_whose_it_is(stand_in, command) -> None:
    stand_in.inspects(EXITED, BEGAN, ENDED)
    stand_in.answers("start", code=3)
    ran(stand_in, command)
    labels = dict(label.split("=", 1) for label in value_of(created(stand_in), "--label"))
    assert labels[container.OPERATION_LABEL] == command.operation_id
    assert (labels[container.SOURCE_LABEL], labels[container.ATTEMPT_LABEL]) == ("here", "1")


def test_an_engine_that_refuses_is_not_sent(stand_in, command) -> None:
    stand_in.answers("create", code=1, error="no space left")
    stand_in.answers("inspect", code=1, error="Error: No such object")
    with pytest.raises(NotSent, match="the container cannot be made: no space left"):
        ran(stand_in, command)


def test_a_command_that_did_not_start_is_not_sent(stand_in, command) -> None:
    stand_in.answers("start", code=127, error="exec failed")
    stand_in.inspects(CREATED, NEVER_BEGAN, NEVER_ENDED)
    with pytest.raises(NotSent, match="could not be started: exec: no"):
        ran(stand_in, command)
    assert ["rm", f"agent-kernel-{command.operation_id}"] in stand_in.calls()


def test_an_engine_that_loses_the_command_is_a_crash_with_the_output_so_far(stand_in, command) -> None:
    stand_in.answers("start", "so far", code=1, error="unexpected EOF")
    stand_in.inspects(EXITED.replace("3", "137"), BEGAN, ENDED)
    with pytest.raises(SandboxCrashed, match="stopped showing") as crash:
        ran(stand_in, command)
    assert crash.value.result.stdout == b"so far\n"


def test_a_container_of_another_attempt_is_left_alone(stand_in, command) -> None:
    stand_in.answers("start", code=0)
    stand_in.inspects(RUNNING, BEGAN, NEVER_ENDED, attempt=2)
    with pytest.raises(SandboxCrashed, match="another attempt took its place"):
        ran(stand_in, command)
    assert not any(call[0] == "rm" for call in stand_in.calls())


def test_an_environment_of_several_lines_is_refused(stand_in, command) -> None:
    with pytest.raises(NotSent, match="COLOUR has more than one line"):
        ran(stand_in, replace(command, environment={"COLOUR": "red\nLD_PRELOAD=/workspace/evil"}))


def test_a_folder_with_a_comma_in_its_name_stays_one_folder() -> None:
    assert container.mount('/w/a,source=/"etc', "/workspace", read_only=True) == (
        'type=bind,"source=/w/a,source=/""etc",target=/workspace,readonly'
    )


def test_no_engine_at_all_says_so(tmp_path: Path) -> None:
    found = Docker("no-such-engine", "image:1", tmp_path).capabilities()
    assert found.unavailable == "no-such-engine cannot be started: No such file or directory"
    assert found.met == frozenset()


def test_an_engine_that_does_not_answer_is_ended(stand_in) -> None:
    (stand_in.folder / "ps").write_text("exec sleep 60\n")
    with pytest.raises(EngineSilent, match=r"gave no answer within 0\.2 s"):
        asyncio.run(engine.call(stand_in.program, "ps", seconds=0.2))


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ((EXITED, BEGAN, ENDED), "ended"),
        ((EXITED.replace("3", "137"), BEGAN, ENDED), "killed"),
        ((RUNNING, BEGAN, NEVER_ENDED), "running"),
        ((CREATED, NEVER_BEGAN, NEVER_ENDED), "never_started"),
    ],
)
def test_what_is_left_is_told_apart(stand_in, state, expected) -> None:
    stand_in.inspects(*state)
    stand_in.answers("logs", "kept")
    left = asyncio.run(container.look(stand_in.program, "operation", 1000))
    assert left.state == expected
    if expected == "ended":
        assert left.result is not None
        assert (left.result.exit_code, left.result.stdout, left.result.seconds) == (3, b"kept\n", 1.44704)


def test_nothing_left_proves_nothing(stand_in) -> None:
    stand_in.answers("inspect", code=1, error="Error: No such object: x")
    left = asyncio.run(container.look(stand_in.program, "operation", 1000))
    assert left == Left("gone")
    assert answer_of(left).verdict == ProbeVerdict.CANNOT_TELL


@pytest.mark.parametrize(
    ("state", "verdict"), [("never_started", "absent"), ("running", "cannot_tell"), ("killed", "cannot_tell")]
)
def test_only_what_provably_never_ran_is_absent(state, verdict) -> None:
    assert answer_of(Left(state)).verdict == verdict


def test_a_trial_that_shows_everything_is_taken() -> None:
    assert list(docker._judged(TRIAL_SAID, frozenset({"HOME", "PATH"}))) == []


def test_an_engine_without_limits_for_the_tree_is_told() -> None:
    assert list(docker._judged(TRIAL_SAID.replace("memory 67108864\n", ""), docker.USUAL_VARIABLES)) == [
        docker.NO_TREE_LIMITS
    ]


@pytest.mark.parametrize(
    ("instead", "sentence"),
    [
        (("Seccomp: 2", "Seccomp: 0"), "does not give what is asked of it: Seccomp: 2"),
        (("NoNewPrivs: 1", "NoNewPrivs: 0"), "NoNewPrivs: 1"),
        (("CapEff: 0000000000000000", "CapEff: 00000000a80425fb"), "leaves capabilities"),
        (("Uid: 1000", "Uid: 0"), "as root"),
        (("network lo", "network lo\nnetwork eth0"), r"a network \(eth0\)"),
        (("root read-only", "root writable"), "root read-only"),
        (("export HOME='/tmp'", "export HOME='/tmp'\nexport HTTP_PROXY='http://user:secret@proxy'"), r"\(HTTP_PROXY\)"),
    ],
)
def test_an_engine_that_gives_less_runs_nothing(instead, sentence) -> None:
    with pytest.raises(NotSent, match=sentence) as refusal:
        list(docker._judged(TRIAL_SAID.replace(*instead), docker.USUAL_VARIABLES))
    assert "secret" not in str(refusal.value)


def test_the_limits_of_the_tool_are_the_engines_words() -> None:
    words = container.limit_options(SandboxLimits(cpu_seconds=5, file_bytes_max=7, open_files_max=9))
    assert {"core=0:0", "cpu=5:7", "fsize=7:7", "nofile=9:9"} <= set(words)

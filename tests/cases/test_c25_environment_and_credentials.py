"""C25. A command sees no environment, file, socket or port of the worker."""

from __future__ import annotations

import logging
import secrets
import socket
from pathlib import Path

import pytest

from runs.boundary.sandbox import run
from tests.sandbox_adapter import answered
from tests.sandbox_commands import command, dispatch, python, shell

CANARY = f"canary-{secrets.token_hex(16)}"
ALLOWED = {"PATH", "HOME", "LANG", "OPERATION_ID", "PWD", "_", "SHLVL", "OLDPWD"}  # the last four are the shell's own

LOOKS = [
    "env",
    "tr '\\0' '\\n' < /proc/self/environ",
    "tr '\\0' '\\n' < /proc/1/environ",
    "tr '\\0' '\\n' < /proc/$PPID/environ",
    "cat /proc/*/environ /proc/*/cmdline | tr '\\0' '\\n'",
    "ssh-add -l; ls -la /run /var/run /root /home /tmp",
]


@pytest.fixture(autouse=True)
def _secrets_of_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    invented_later = f"X{secrets.token_hex(4).upper()}"
    for name in ("DATABASE_URL", "OPENAI_API_KEY", "SSH_AUTH_SOCK", "GIT_ASKPASS", "PGSERVICEFILE", invented_later):
        monkeypatch.setenv(name, CANARY)


@pytest.mark.parametrize("look", LOOKS)
async def test_no_look_finds_the_canary(look: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    configuration = {"argv": ["/bin/sh", "-c", "{command}"]}
    result = await answered(dispatch(tmp_path, configuration, arguments={"command": look}))
    assert CANARY not in result.model_dump_json()
    assert CANARY not in caplog.text


async def test_the_environment_is_an_allow_list(tmp_path: Path) -> None:
    asked = command(("/usr/bin/env",), tmp_path, environment={"TZ": "UTC"})
    result = await run(asked)
    variables = dict(line.split("=", 1) for line in result.stdout.decode().splitlines())
    assert set(variables) <= ALLOWED | {"TZ"}
    assert variables["OPERATION_ID"] == asked.operation_id
    assert not {name for name in variables if "SSH" in name or "ASKPASS" in name or "PG" in name}


async def test_a_tool_cannot_replace_the_operation_id(tmp_path: Path) -> None:
    asked = command(("/usr/bin/env",), tmp_path, environment={"OPERATION_ID": "forged"})
    assert f"OPERATION_ID={asked.operation_id}".encode() in (await run(asked)).stdout


async def test_files_of_the_worker_are_not_there(tmp_path: Path) -> None:
    (tmp_path / "settings.env").write_text(CANARY)
    paths = [str(tmp_path / "settings.env"), "/workspace/../settings.env", "/etc/shadow", "/etc/hostname", __file__]
    result = await run(shell("cat " + " ".join(paths), tmp_path))
    assert result.stdout == b""
    assert result.stderr.count(b"No such file") == len(paths)


async def test_descriptors_of_the_worker_are_not_there(tmp_path: Path) -> None:
    with (tmp_path / "open").open("w"):
        result = await run(shell("ls -l /proc/self/fd/ /proc/1/fd/", tmp_path))
    assert str(tmp_path).encode() not in result.stdout
    assert b"memfd" not in result.stdout


async def test_no_port_of_this_machine_answers(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        result = await run(python(f"import socket; socket.create_connection(('127.0.0.1', {port}), 2)", tmp_path))
    assert result.exit_code == 1
    assert b"ConnectionRefusedError" in result.stderr


async def test_there_is_no_network_but_an_empty_loopback(tmp_path: Path) -> None:
    result = await run(shell("cat /proc/net/dev /proc/net/route", tmp_path))
    names = [line.split(b":")[0].strip() for line in result.stdout.splitlines() if b":" in line]
    assert names == [b"lo"]


async def test_abstract_sockets_of_this_machine_are_not_there(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        name = f"agent-kernel-test-{secrets.token_hex(8)}"
        server.bind(f"\0{name}")
        server.listen()
        script = f"import socket; socket.socket(socket.AF_UNIX).connect('\\0{name}')"
        result = await run(python(script, tmp_path))
    assert b"ConnectionRefusedError" in result.stderr


async def test_what_the_tool_is_given_is_in_no_process_list(tmp_path: Path) -> None:
    """The environment of a tool may hold a secret of its own: it goes to bwrap by descriptor."""
    look = "cat /proc/[0-9]*/cmdline | tr '\\0' '\\n'"
    result = await run(shell(look, tmp_path, environment={"TOOL_TOKEN": CANARY}))
    assert result.exit_code == 0
    assert CANARY.encode() not in result.stdout

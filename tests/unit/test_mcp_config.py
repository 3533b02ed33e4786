"""How MCP servers are declared, and where their secrets come from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from runs.boundary.mcp_config import McpServerConfig, ValueMissing, process_environment, resolve, stored_config

STDIO: dict[str, Any] = {"name": "s", "transport": "stdio", "command": "server"}
HTTP: dict[str, Any] = {"name": "s", "transport": "http", "url": "https://example.com/mcp"}


@pytest.mark.parametrize(
    ("declared", "why"),
    [
        ({**STDIO, "command": ""}, "needs `command`"),
        ({**STDIO, "url": "http://x"}, "belong to transport http"),
        ({**HTTP, "command": "x"}, "belong to transport stdio"),
        ({**HTTP, "url": "ftp://x"}, "must be an http"),
        ({**HTTP, "url": "https://user:secret@x/"}, "no user or password"),
        ({**HTTP, "url": "http://[x"}, "not a URL"),
        ({**HTTP, "headers": {"a b": "c"}}, "no name of an HTTP header"),
        ({**STDIO, "environment": {"A=B": "c"}}, "no name of an environment variable"),
        ({**STDIO, "environment": {"A": {"from_env": "B", "from_file": "C"}}}, "environment"),
        ({**STDIO, "args": ["a\0b"]}, "NUL"),
        ({**STDIO, "call_timeout_seconds": 0}, "greater than 0"),
        ({**STDIO, "call_timeout": 5}, "call_timeout"),
        ({**STDIO, "transport": "sse"}, "stdio"),
        ({**STDIO, "name": ""}, "name"),
    ],
)
def test_a_wrong_declaration_is_refused_with_a_sentence(declared: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        McpServerConfig.model_validate(declared)


def test_a_row_of_a_newer_version_can_be_read() -> None:
    assert stored_config({**STDIO, "invented_later": 1}).command == "server"


def test_the_worker_s_environment_stays_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DATABASE_URL", "OPENAI_API_KEY", "SSH_AUTH_SOCK", "GIT_ASKPASS", "PGSERVICEFILE", "INVENTED_LATER"):
        monkeypatch.setenv(name, "canary")
    config = McpServerConfig.model_validate({**STDIO, "environment": {"A": "{workspace}/x"}})
    environment = process_environment(config, "/work")
    assert environment["A"] == "/work/x"
    assert set(environment) <= {"PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "HOME", "A"}


def test_secrets_are_read_at_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "token"
    file.write_text("from-file\n")
    monkeypatch.setenv("MY_TOKEN", "from-env")
    declared = {**HTTP, "headers": {"A": {"from_env": "MY_TOKEN"}, "B": {"from_file": str(file)}, "C": "plain"}}
    config = McpServerConfig.model_validate(declared)
    assert [resolve(value) for value in config.headers.values()] == ["from-env", "from-file", "plain"]
    assert "from-" not in config.model_dump_json() + repr(config)


@pytest.mark.parametrize("content", [None, b"a\nb", b"\xff", b"x" * 70_000])
def test_a_secret_that_cannot_be_used_is_named_and_not_shown(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)
    config = McpServerConfig.model_validate({**HTTP, "headers": {"A": {"from_file": str(file)}}})
    with pytest.raises(ValueMissing, match=str(file)):
        resolve(config.headers["A"])

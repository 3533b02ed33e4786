"""The published git server, in its own environment: a commit is found by its trailer, and only if it is there."""

from __future__ import annotations

import fcntl
import hashlib
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from runs.boundary.contracts import ProbeVerdict
from runs.boundary.effects import mcp
from runs.boundary.mcp_config import McpServerConfig
from runs.boundary.mcp_pool import close_sessions
from runs.boundary.mcp_tools import list_tools
from tests.mcp_servers.running import dispatch

ROOT = Path(__file__).parents[2]
PINS = ROOT / "requirements-mcp-server-git.txt"
ENTRIES_MAX = 200
LOOK_UP = {
    "tool": "git_log",
    "arguments": {"repo_path": "{argument:repo_path}", "max_count": ENTRIES_MAX},
    "found_when": {"regex": r"(?m)^Operation-Id: {operation_id}$"},
    "covers": {"entry": r"(?m)^Commit: [0-9a-f]{40}$", "entries_max": ENTRIES_MAX},
}


@pytest.fixture(autouse=True)
async def sessions_end() -> AsyncIterator[None]:
    yield
    await close_sessions()


@pytest.fixture(scope="session")
def git_server() -> str:
    """The server's program, installed from our pins once for each Python and set of pins."""
    version = hashlib.sha256(PINS.read_bytes() + sys.version.encode()).hexdigest()[:12]
    folder = ROOT / "var" / f"mcp-server-git-{version}"
    program = folder / "bin" / "mcp-server-git"
    folder.parent.mkdir(exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two test processes must not install at once
        if not program.exists():
            uv = str(Path(sys.executable).parent / "uv")
            subprocess.run([uv, "venv", "--clear", "--quiet", "--python", sys.executable, str(folder)], check=True)
            install = [uv, "pip", "install", "--quiet", "--python", str(folder / "bin" / "python")]
            subprocess.run([*install, "--require-hashes", "-r", str(PINS)], check=True)
    return str(program)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.com"]
    subprocess.run([*git, "init", "-q", str(folder)], check=True)
    (folder / "README").write_text("hello\n")
    subprocess.run([*git, "add", "."], cwd=folder, check=True)
    subprocess.run([*git, "commit", "-q", "-m", "first"], cwd=folder, check=True)
    return folder


def config(program: str) -> dict[str, Any]:
    names = {"GIT_AUTHOR_NAME": "agent", "GIT_AUTHOR_EMAIL": "agent@example.com"}
    committer = {"GIT_COMMITTER_NAME": "agent", "GIT_COMMITTER_EMAIL": "agent@example.com"}
    return {
        "name": "git",
        "transport": "stdio",
        "command": program,
        "args": ["--repository", "{workspace}"],
        "environment": {**names, **committer},
    }


async def test_its_tools_can_be_registered(git_server: str, repository: Path) -> None:
    listing = await list_tools(McpServerConfig.model_validate(config(git_server)), str(repository))
    assert {"git_commit", "git_log", "git_add"} <= {tool.name for tool in listing.tools}
    assert listing.problems == []


async def test_a_commit_is_found_by_its_trailer(git_server: str, repository: Path) -> None:
    server, operation = config(git_server), uuid4()
    (repository / "report").write_text("a report\n")
    place = {"repo_path": str(repository)}
    staged = await mcp.perform(dispatch(server, "git_add", {**place, "files": ["report"]}, workspace=str(repository)))
    assert staged.is_error is False, staged.text
    arguments = {**place, "message": f"Add a report\n\nOperation-Id: {operation}"}
    commit = dispatch(server, "git_commit", arguments, operation=operation, workspace=str(repository), probe=LOOK_UP)
    assert (await mcp.probe(commit)).verdict is ProbeVerdict.CANNOT_TELL, "nobody here knows of such a call"
    done = await mcp.perform(commit)
    assert done.text.startswith("Changes committed successfully")
    found = await mcp.probe(commit)
    assert found.verdict is ProbeVerdict.ONE
    assert found.result is not None
    assert "Commit: " in found.result.text


async def test_another_repository_s_path_is_an_error_and_no_absence(git_server: str, repository: Path) -> None:
    arguments = {"repo_path": "/nonexistent", "message": "x"}
    commit = dispatch(config(git_server), "git_commit", arguments, workspace=str(repository), probe=LOOK_UP)
    assert (await mcp.probe(commit)).verdict is ProbeVerdict.CANNOT_TELL


async def test_a_log_that_was_cut_proves_no_absence(git_server: str, repository: Path) -> None:
    short = {**LOOK_UP, "arguments": {**LOOK_UP["arguments"], "max_count": 1}}  # type: ignore[dict-item]
    short["covers"] = {**LOOK_UP["covers"], "entries_max": 1}  # type: ignore[dict-item]
    arguments = {"repo_path": str(repository), "message": "x"}
    commit = dispatch(config(git_server), "git_commit", arguments, workspace=str(repository), probe=short)
    assert (await mcp.probe(commit)).verdict is ProbeVerdict.CANNOT_TELL

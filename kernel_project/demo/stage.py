"""What the demo needs before its first run: the git MCP server in its own environment, two clones, the registration."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import subprocess
import sys
from pathlib import Path

from django.core.management import CommandError, call_command

from kernel_project.devstack.api_client import NotAsPromised
from kernel_project.devstack.layout import PROJECT_ROOT
from kernel_project.devstack.stack import Stack

REQUIREMENTS = PROJECT_ROOT / "requirements-mcp-server-git.txt"
TEMPLATE = Path(__file__).parent / "project.yaml"
SCRIPT = "scripted:kernel_project/demo/plan.yaml"
INSTALL_SECONDS_MAX = 300.0
CLONE_SECONDS_MAX = 120.0
CLONE_COMMITS = 200  # enough to report on; a long history only costs time


def git_server(var: Path) -> Path:
    """The program `mcp-server-git`, installed once per set of pins into an environment of its own."""
    pins = hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()[:12]
    home = var / "tools" / f"mcp-server-git-{pins}"
    program = home / "bin" / "mcp-server-git"
    if not program.exists():
        shutil.rmtree(home, ignore_errors=True)
        uv = [sys.executable, "-m", "uv"]
        _run([*uv, "venv", "--quiet", "--python", sys.executable, str(home)], INSTALL_SECONDS_MAX)
        sync = [*uv, "pip", "sync", "--quiet", "--require-hashes", str(REQUIREMENTS), "--python", str(home)]
        _run(sync, INSTALL_SECONDS_MAX)
    return program


def clone(repository: str, workspaces: Path, name: str) -> Path:
    """A fresh clone of the repository as a workspace of the demo's project."""
    folder = workspaces / "demo" / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    source = Path(repository).resolve()
    if not (source / ".git").exists() and not (source / "HEAD").exists():
        raise NotAsPromised(f"{source} is no git repository: name one with --repo PATH")
    depth = ["--depth", str(CLONE_COMMITS), "--no-tags"]
    # the repository may be another user's, which git would refuse to read
    reader = ["--upload-pack", "git -c safe.directory=* upload-pack"]
    _run(["git", "clone", "--quiet", *reader, *depth, source.as_uri(), str(folder)], CLONE_SECONDS_MAX)
    return folder


def register(stack: Stack, program: Path, workspace: Path) -> None:
    """Load the project file, with this machine's paths in it."""
    text = TEMPLATE.read_text().replace("{git_server}", str(program))
    text = text.replace("{model}", os.environ.get("KERNEL_MODEL", "") or SCRIPT)
    file = stack.layout.var / "demo" / "project.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    manage("load_agents", str(file), "--by", "demo", "--workspace", str(workspace))


def manage(*words: str) -> str:
    """Run a management command, in this process, whose settings lead to the same stack; returns what it printed."""
    printed = io.StringIO()
    try:
        call_command(*words, stdout=printed)
    except CommandError as error:
        raise NotAsPromised(f"manage.py {words[0]} failed: {error}") from error
    return printed.getvalue()


def commits_of(folder: Path, operation_id: str = "") -> list[str]:
    """The commits of a workspace, newest first; with an operation's id, those that carry it."""
    found = ["--grep", f"Operation-Id: {operation_id}", "--fixed-strings"] if operation_id else []
    return _run(
        ["git", "-c", "safe.directory=*", "-C", str(folder), "log", "--format=%h %an: %s", *found], CLONE_SECONDS_MAX
    ).splitlines()


def _run(command: list[str], seconds: float) -> str:
    try:
        done = subprocess.run(  # noqa: S603  our own commands
            command, capture_output=True, text=True, timeout=seconds, check=True, stdin=subprocess.DEVNULL
        )
    except FileNotFoundError:
        raise NotAsPromised(f"{command[0]} is not installed") from None
    except subprocess.CalledProcessError as error:
        raise NotAsPromised(f"{' '.join(command[:3])} … failed: {error.stderr.strip()[-500:]}") from None
    return done.stdout

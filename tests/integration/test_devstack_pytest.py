"""pytest itself may be killed: neither its workers nor their servers stay, and the next session clears the folders."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from kernel_project.devstack.layout import PROJECT_ROOT
from tests.processes import of_stack, wait_until_gone

MARK = "AGENT_KERNEL_TEST_MARK"
START_SECONDS_MAX = 100.0
SLOW_TEST = """
import time

def test_slow(postgres, valkey):
    time.sleep(300)
"""


@pytest.mark.timeout(200)
def test_nothing_is_left_of_a_killed_session(tmp_path: Path) -> None:
    mark = uuid.uuid4().hex
    (tmp_path / "test_slow.py").write_text(SLOW_TEST)
    command = [sys.executable, "-m", "pytest", "-n", "1", "-p", "no:cacheprovider", "--rootdir", str(PROJECT_ROOT)]
    session = subprocess.Popen(
        [*command, "-c", str(PROJECT_ROOT / "pyproject.toml"), str(tmp_path / "test_slow.py")],
        cwd=PROJECT_ROOT, env={name: value for name, value in os.environ.items() if "XDIST" not in name} | {MARK: mark},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        folder = wait_for_servers(mark)
    finally:
        session.kill()
        session.wait(30)
    wait_until_gone(mark, MARK)
    wait_until_gone(folder)


def wait_for_servers(mark: str) -> str:
    """Return the folder of the session's servers as soon as the last of them runs."""
    deadline = time.monotonic() + START_SECONDS_MAX
    while True:
        for line in of_stack(mark, MARK):
            found = re.search(r"valkey-server .*--dir (\S+)/valkey ", line)
            if found and any("/valkey-server 127.0.0.1" in one for one in of_stack(found[1])):
                return found[1]
        assert time.monotonic() < deadline, of_stack(mark, MARK)
        time.sleep(0.2)

"""What becomes of MCP server processes: they see little, and nothing of them stays behind."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from runs.boundary import mcp_sessions
from runs.boundary.contracts import NotSent
from runs.boundary.effects import mcp
from runs.boundary.mcp_pool import close_sessions, current_sessions
from tests.mcp_servers.running import dispatch, raw_config

ENDED_SECONDS = 10
SAID = '{"content":[{"type":"text","text":"said"}]}'


@pytest.fixture(autouse=True)
async def sessions_end() -> AsyncIterator[None]:
    yield
    await close_sessions()


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def pids_in(file: Path) -> list[int]:
    return [int(pid) for pid in file.read_text().split()] if file.exists() else []


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def wait_until_ended(pids: list[int]) -> None:
    deadline = time.monotonic() + ENDED_SECONDS
    while any(alive(pid) for pid in pids):
        assert time.monotonic() < deadline, f"still there: {[pid for pid in pids if alive(pid)]}"
        time.sleep(0.02)


async def test_a_server_sees_only_what_is_declared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INVENTED_LATER", "canary")
    monkeypatch.setenv("MY_TOKEN", "secret-token")
    declared = {"TOKEN": {"from_env": "MY_TOKEN"}, "PLACE": "{workspace}"}
    server = raw_config(tmp_path, {}, environment=declared, working_directory="{workspace}")
    answer = await mcp.perform(dispatch(server, "environment", workspace=str(tmp_path)))
    seen = json.loads(answer.text)
    assert set(seen) <= {"PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "HOME", "PWD", "TOKEN", "PLACE"}
    assert (seen["TOKEN"], seen["PLACE"]) == ("[secret]", str(tmp_path))
    assert "canary" not in answer.text


async def test_a_server_without_its_secret_is_not_started(tmp_path: Path) -> None:
    server = raw_config(tmp_path, {"tool": SAID}, environment={"TOKEN": {"from_env": "NOT_SET_ANYWHERE"}})
    with pytest.raises(NotSent, match="NOT_SET_ANYWHERE is not set"):
        await mcp.perform(dispatch(server, "tool"))


async def test_what_a_server_complains_about_at_its_start_is_told_without_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOKEN", "canary-1234")
    script = "echo no licence for $TOKEN >&2; exit 1"
    server = {"name": "s", "transport": "stdio", "command": "sh", "args": ["-c", script]}
    with pytest.raises(NotSent, match=r"no licence for \[secret\]"):
        await mcp.perform(dispatch({**server, "environment": {"TOKEN": {"from_env": "MY_TOKEN"}}}, "tool"))


async def test_a_server_that_says_nothing_is_given_up_and_ended(tmp_path: Path) -> None:
    server = {"name": "s", "transport": "stdio", "command": "sleep", "args": ["300"], "start_timeout_seconds": 0.5}
    others = set(children_of(os.getpid()))
    with pytest.raises(NotSent, match=r"no answer within 0.5 s"):
        await mcp.perform(dispatch(server, "tool"))
    guards = set(children_of(os.getpid())) - others
    assert guards
    await close_sessions()
    wait_until_ended(sorted(guards))


async def test_closing_the_pool_ends_all_processes_and_their_descendants(tmp_path: Path) -> None:
    files = [tmp_path / f"pids{number}" for number in range(3)]
    for file in files:
        await mcp.perform(dispatch(raw_config(tmp_path, {"tool": SAID, "spawn": str(file)}), "tool"))
    pids = [pid for file in files for pid in pids_in(file)]
    assert len(pids) == 6
    assert all(alive(pid) for pid in pids)
    await close_sessions()
    assert not any(alive(pid) for pid in pids)


async def test_a_descendant_does_not_outlive_its_server(tmp_path: Path) -> None:
    file = tmp_path / "pids"
    await mcp.perform(dispatch(raw_config(tmp_path, {"tool": SAID, "spawn": str(file)}), "tool"))
    server, descendant = pids_in(file)
    os.kill(server, signal.SIGKILL)
    await asyncio.to_thread(wait_until_ended, [server, descendant])


WORKER = """
import asyncio, sys
from runs.boundary.effects import mcp
from tests.mcp_servers.running import dispatch, raw_config
from pathlib import Path

async def main():
    server = raw_config(Path(sys.argv[1]), {"tool": sys.argv[2], "spawn": sys.argv[1] + "/pids"})
    await mcp.perform(dispatch(server, "tool"))
    print("called", flush=True)
    await asyncio.sleep(300)

asyncio.run(main())
"""


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM])
async def test_nothing_outlives_a_killed_worker(tmp_path: Path, ending: signal.Signals) -> None:
    command = [sys.executable, "-c", WORKER, str(tmp_path), SAID]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        assert await asyncio.to_thread(worker.stdout.readline) == "called\n"
        pids = [*pids_in(tmp_path / "pids"), *children_of(worker.pid)]
        assert len(pids) == 3
        assert all(alive(pid) for pid in pids)
        worker.send_signal(ending)
    await asyncio.to_thread(wait_until_ended, pids)


async def test_a_server_that_prints_to_its_output_still_works(tmp_path: Path) -> None:
    answer = await mcp.perform(dispatch(raw_config(tmp_path, {"tool": SAID, "chatter": True}), "tool"))
    assert answer.text == "said"


async def test_an_idle_session_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_sessions, "IDLE_SECONDS", 0.2)
    file = tmp_path / "pids"
    await mcp.perform(dispatch(raw_config(tmp_path, {"tool": SAID, "spawn": str(file)}), "tool"))
    await asyncio.to_thread(wait_until_ended, pids_in(file))
    async with asyncio.timeout(ENDED_SECONDS):
        while current_sessions()._sessions:
            await asyncio.sleep(0.02)


async def test_calls_at_the_same_time_share_one_session(tmp_path: Path) -> None:
    file = tmp_path / "pids"
    server = raw_config(tmp_path, {"tool": SAID, "spawn": str(file)})
    others = set(children_of(os.getpid()))
    answers = await asyncio.gather(*(mcp.perform(dispatch(server, "tool")) for _ in range(20)))
    assert {answer.text for answer in answers} == {"said"}
    assert len(set(children_of(os.getpid())) - others) == 1


async def test_the_number_of_sessions_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_sessions, "SESSIONS_MAX", 2)
    files = [tmp_path / f"pids{number}" for number in range(3)]
    for file in files:
        await mcp.perform(dispatch(raw_config(tmp_path, {"tool": SAID, "spawn": str(file)}), "tool"))
    await asyncio.to_thread(wait_until_ended, pids_in(files[0]))
    assert all(alive(pid) for file in files[1:] for pid in pids_in(file))


async def test_a_closed_pool_takes_no_calls(tmp_path: Path) -> None:
    pool = current_sessions()
    await pool.close()
    with pytest.raises(NotSent, match="shutting down"):
        await mcp.perform(dispatch(raw_config(tmp_path, {"tool": SAID}), "tool"))

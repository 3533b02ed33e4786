"""A probe in another process: it never says "did not happen" while the server that got the call may still act."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings

from runs.boundary import mcp_calls
from runs.boundary.contracts import Dispatch, ProbeAnswer, ProbeVerdict
from runs.boundary.effects import mcp
from runs.boundary.mcp_pool import close_sessions
from runs.boundary.mcp_sessions import SessionLost
from tests.mcp_servers.running import dispatch, lines, stdio_config

FIND = {"tool": "find", "found_when": {"contains": '"tool": "write", "key": "{operation_id}"'}}  # not what hangs
SLOW_SECONDS = 50  # for a process to start on a busy machine


@pytest.fixture(autouse=True)
async def sessions_end() -> AsyncIterator[None]:
    yield
    await close_sessions()


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_calls, "QUIET_SECONDS", 0.3)


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "ledger"


async def elsewhere(operation: Dispatch) -> ProbeAnswer:
    """A probe in an event loop of its own, which knows nothing of ours; as Celery makes it."""

    async def alone() -> ProbeAnswer:
        try:
            return await mcp.probe(operation)
        finally:
            await close_sessions()

    return await asyncio.to_thread(lambda: asyncio.run(alone()))


async def called(ledger: Path, count: int = 1) -> None:
    async with asyncio.timeout(SLOW_SECONDS):
        while len(lines(ledger)) < count:
            await asyncio.sleep(0.02)


async def test_while_the_call_runs_here_nobody_elsewhere_says_that_it_did_not_happen(ledger: Path) -> None:
    operation = dispatch(stdio_config("ledger.py", ledger), "hang", probe=FIND)
    task = asyncio.create_task(mcp.perform(operation))
    await called(ledger)
    answer = await elsewhere(operation)
    assert (answer.verdict, "has not ended" in answer.detail) == (ProbeVerdict.CANNOT_TELL, True)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await close_sessions()
    assert (await elsewhere(operation)).verdict is ProbeVerdict.ABSENT


async def test_what_is_there_is_believed_at_once(ledger: Path) -> None:
    server = stdio_config("ledger.py", ledger)
    operation = dispatch(server, "write")
    await mcp.perform(operation)
    assert (await elsewhere(dispatch(server, "write", probe=FIND, operation=operation.operation_id))).verdict is (
        ProbeVerdict.ONE
    )


async def test_a_call_that_ended_clearly_leaves_no_note_and_one_that_did_not_keeps_it(ledger: Path) -> None:
    server = stdio_config("ledger.py", ledger)
    clear, unclear = dispatch(server, "write", probe=FIND), dispatch(server, "die_before", probe=FIND)
    await mcp.perform(clear)
    with pytest.raises(SessionLost):
        await mcp.perform(unclear)
    notes = mcp_calls._folder("calls")
    assert not (notes / f"{clear.operation_id}.1").exists()
    assert (notes / f"{unclear.operation_id}.1").exists()
    assert (await elsewhere(unclear)).verdict is ProbeVerdict.ABSENT


def forgets(note: Path) -> None:
    note.unlink()


def comes_from_another_boot(note: Path) -> None:
    note.write_text(json.dumps(json.loads(note.read_text()) | {"boot": "another"}))


def is_damaged(note: Path) -> None:
    note.write_text("{")


@pytest.mark.parametrize("happens", [forgets, comes_from_another_boot, is_damaged])
async def test_a_machine_that_does_not_know_cannot_tell(ledger: Path, happens: Callable[[Path], None]) -> None:
    operation = dispatch(stdio_config("ledger.py", ledger), "die_before", probe=FIND)
    with pytest.raises(SessionLost):
        await mcp.perform(operation)
    happens(mcp_calls._folder("calls") / f"{operation.operation_id}.1")
    assert (await elsewhere(operation)).verdict is ProbeVerdict.CANNOT_TELL


WORKER = """
import asyncio, sys, django, json
django.setup()
from uuid import UUID
from tests.mcp_servers.running import dispatch
from runs.boundary.effects import mcp
server, operation, probe = json.loads(sys.argv[1]), UUID(sys.argv[2]), json.loads(sys.argv[3])
asyncio.run(mcp.perform(dispatch(server, "hang", operation=operation, probe=probe, seconds=100)))
"""


def worker(server: dict[str, Any], operation: Dispatch) -> subprocess.Popen[bytes]:
    arguments = [json.dumps(server), str(operation.operation_id), json.dumps(FIND)]
    return subprocess.Popen([sys.executable, "-c", WORKER, *arguments], cwd=settings.BASE_DIR)


async def test_a_worker_that_hangs_keeps_its_server_and_one_that_was_killed_does_not(ledger: Path) -> None:
    """A stopped process cannot end its server, which works on; the death of the process ends it."""
    server = stdio_config("ledger.py", ledger)
    operation = dispatch(server, "hang", probe=FIND)
    process = worker(server, operation)
    try:
        await called(ledger)
        process.send_signal(signal.SIGSTOP)
        assert (await elsewhere(operation)).verdict is ProbeVerdict.CANNOT_TELL
        process.kill()
        process.wait()
        async with asyncio.timeout(SLOW_SECONDS):
            while await mcp_calls.could_still_act(str(operation.operation_id), 1):
                await asyncio.sleep(0.1)
        assert (await elsewhere(operation)).verdict is ProbeVerdict.ABSENT
    finally:
        process.kill()
        process.wait()


async def test_locks_of_ended_processes_are_tidied_and_held_ones_are_not(ledger: Path) -> None:
    await mcp.perform(dispatch(stdio_config("ledger.py", ledger), "write"))
    locks = mcp_calls._folder("locks")
    held = {entry.name for entry in locks.iterdir()}
    (locks / "left-behind").touch()
    await asyncio.to_thread(mcp_calls.tidy)
    assert {entry.name for entry in locks.iterdir()} == held
    await close_sessions()
    assert not any(mcp_calls._is_held(locks / name) for name in held)

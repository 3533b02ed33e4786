"""Many who follow runs at once, for `manage.py bench api`: what each was sent, when, and what the web process spent.

Plain sockets, so that the measurement is not the client's. A follower asks again where it is told to come later.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import SplitResult
from uuid import UUID

CONNECT_PER_S = 50.0
OPEN_SECONDS_MAX = 60.0
FRAMES_SECONDS_MAX = 60.0
BETWEEN_EVENTS_SECONDS = 1.0
LINE_BYTES_MAX = 1024 * 1024
EVENT = b"event: turn.started"
LISTENING = "0A"  # in /proc/net/tcp
PROC = Path("/proc")

Tell = Callable[[UUID, int], Awaitable[None]]


@dataclass
class Followed:
    """What came of it. `delays` are seconds from an event's commit to each follower's frame."""

    open_at_once: int = 0
    frames: int = 0
    threads_before: int = 0
    threads_during: int = 0
    delays: list[float] = field(default_factory=list)


@dataclass
class _Line:
    """One open stream: when each of its event frames came."""

    run_id: UUID
    opened: asyncio.Event = field(default_factory=asyncio.Event)
    at: list[float] = field(default_factory=list)


async def follow_all(
    address: SplitResult, token: str, run_ids: Sequence[UUID], tell: Tell, events: int, process: int | None
) -> Followed:
    """Open a stream for each of `run_ids`, then write so many events into each run, and see who gets them when."""
    told = Followed(threads_before=threads(process))
    lines = [_Line(run_id) for run_id in run_ids]
    tasks = []
    for line in lines:
        tasks.append(asyncio.create_task(_read(address, token, line)))
        await asyncio.sleep(1 / CONNECT_PER_S)
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(OPEN_SECONDS_MAX):
                await asyncio.gather(*[line.opened.wait() for line in lines])
        written = await _write(sorted(set(run_ids)), tell, events)
        told.threads_during = threads(process)
        told.open_at_once = sum(
            line.opened.is_set() and not task.done() for line, task in zip(lines, tasks, strict=True)
        )
        await _all_there(lines, events)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for line in lines:
        told.frames += len(line.at)
        told.delays += [came - wrote for came, wrote in zip(line.at, written[line.run_id], strict=False)]
    return told


async def _write(run_ids: Sequence[UUID], tell: Tell, events: int) -> dict[UUID, list[float]]:
    """When each event of each run was committed."""
    written: dict[UUID, list[float]] = {run_id: [] for run_id in run_ids}
    for number in range(events):
        for run_id in run_ids:
            await tell(run_id, number)
            written[run_id].append(time.perf_counter())
        await asyncio.sleep(BETWEEN_EVENTS_SECONDS)
    return written


async def _all_there(lines: Sequence[_Line], events: int) -> None:
    until = time.monotonic() + FRAMES_SECONDS_MAX
    while time.monotonic() < until and any(len(line.at) < events for line in lines):  # noqa: ASYNC110
        await asyncio.sleep(0.1)


async def _read(address: SplitResult, token: str, line: _Line) -> None:
    reader, writer = await asyncio.open_connection(address.hostname, address.port, limit=LINE_BYTES_MAX)
    try:
        writer.write(
            f"GET /api/v1/runs/{line.run_id}/events HTTP/1.1\r\nHost: {address.netloc}\r\n"
            f"Authorization: Bearer {token}\r\nAccept: text/event-stream\r\n\r\n".encode()
        )
        status = await reader.readline()
        if b" 200 " not in status:
            raise ConnectionError(f"a follower was refused: {status.decode().strip()}")
        async for text in reader:
            if text.startswith(b"event: run.started"):  # the head of each run's stream: from here on it is live
                line.opened.set()
            elif text.startswith(EVENT):
                line.at.append(time.perf_counter())
    finally:
        writer.close()


def web_process(port: int) -> int | None:
    """The process that listens on a port of the loopback, where the system tells."""
    inodes = {fields[9] for fields in _sockets() if fields[3] == LISTENING and int(fields[1].split(":")[1], 16) == port}
    for folder in PROC.glob("[0-9]*/fd"):
        with contextlib.suppress(OSError):
            if any(one.readlink().name.removeprefix("socket:[").rstrip("]") in inodes for one in folder.iterdir()):
                return int(folder.parent.name)
    return None


def _sockets() -> list[list[str]]:
    table = PROC / "net/tcp"
    return [line.split() for line in table.read_text().splitlines()[1:]] if table.exists() else []


def threads(process: int | None) -> int:
    """How many threads a process has; 0 where nobody can say."""
    with contextlib.suppress(OSError):
        return len(list((PROC / f"{process}/task").iterdir())) if process else 0
    return 0

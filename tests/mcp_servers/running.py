"""Starting the test servers, and dispatches to call their tools with."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from kernel_project.primitives import clock
from runs.boundary.contracts import Dispatch

HERE = Path(__file__).parent
START_SECONDS_MAX = 20


def stdio_config(script: str, *args: str | Path, **more: Any) -> dict[str, Any]:
    command = [str(HERE / script), *(str(arg) for arg in args)]
    return {"name": "ledger", "transport": "stdio", "command": sys.executable, "args": command, **more}


def raw_config(folder: Path, answers: dict[str, Any], **more: Any) -> dict[str, Any]:
    file = folder / f"answers-{uuid4().hex}.json"
    file.write_text(json.dumps(answers))
    return stdio_config("raw.py", file, **more)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def http_ledger(ledger: Path, port: int) -> Iterator[dict[str, Any]]:
    """The ledger server over HTTP, ready; its configuration."""
    process = subprocess.Popen([sys.executable, str(HERE / "ledger.py"), str(ledger), str(port)])
    try:
        wait_for_port(port)
        yield {"name": "ledger", "transport": "http", "url": f"http://127.0.0.1:{port}/mcp"}
    finally:
        process.kill()
        process.wait()


def wait_for_port(port: int) -> None:
    for _ in range(START_SECONDS_MAX * 50):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise AssertionError(f"nothing listens on port {port}")


class Marks:
    """Counts what the adapter tells the kernel."""

    def __init__(self) -> None:
        self.sending = 0
        self.heartbeats = 0

    async def mark(self) -> None:
        self.sending += 1

    def beat(self, *_: object) -> None:
        self.heartbeats += 1


def dispatch(
    server: dict[str, Any],
    tool: str,
    arguments: dict[str, Any] | None = None,
    *,
    operation: UUID | None = None,
    seconds: float = 20,
    workspace: str = "",
    marks: Marks | None = None,
    **configuration: Any,
) -> Dispatch:
    marks = marks or Marks()
    return Dispatch(
        operation_id=operation or uuid4(),
        run_id=uuid4(),
        project_id="test",
        attempt=1,
        tool=tool,
        arguments=arguments or {},
        configuration={"server": server, "remote_name": tool, "probe": None, **configuration},
        timeout_seconds=seconds,
        deadline_at=clock.now() + timedelta(seconds=seconds),
        workspace=workspace,
        sending=marks.mark,
        heartbeat=marks.beat,
    )


def lines(ledger: Path) -> list[dict[str, Any]]:
    """What the server executed, in order."""
    return [json.loads(line) for line in ledger.read_text().splitlines()] if ledger.exists() else []

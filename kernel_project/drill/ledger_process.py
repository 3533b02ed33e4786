"""The ledger as the drill and the tests see it: start its process, read its lines, tell it what to break."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Self

import httpx2

ADDRESS_VARIABLE = "DRILL_LEDGER_URL"
TIMEOUT_SECONDS = 10.0
STOP_SECONDS_MAX = 10.0


class LedgerProcess:
    """A running ledger; its lines outlive it in `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.address = ""
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "kernel_project.drill.ledger", str(self.path)]
        root = Path(__file__).resolve().parents[2]
        self._process = subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True)  # noqa: S603  our own
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().strip()
        assert self.address, "the ledger did not start"
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.wait(STOP_SECONDS_MAX)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def environment(self) -> dict[str, str]:
        """What a worker needs to know to find it."""
        return {ADDRESS_VARIABLE: self.address}

    def breaks(self, text: str, fault: str) -> None:
        """Let the next booking of this text end as the fault says (see ledger.py)."""
        body = {"text": text, "fault": fault}
        httpx2.post(f"{self.address}/faults", json=body, trust_env=False, timeout=TIMEOUT_SECONDS).raise_for_status()

    def lines(self) -> list[dict[str, str]]:
        return [json.loads(line) for line in self.path.read_text().splitlines()]

    def counts(self) -> Counter[str]:
        """How often each text was booked."""
        return Counter(line["text"] for line in self.lines())


class LedgerClient:
    """What a tool uses to book effects; made before a fork, it connects in each process anew."""

    def __init__(self, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        limits = httpx2.Limits(max_keepalive_connections=0)  # no connection is shared with a forked child
        self._http = httpx2.Client(trust_env=False, timeout=timeout_seconds, limits=limits)

    def book(self, mode: str, text: str, key: str) -> str:
        """Book one effect; raises what httpx2 raises when the answer does not come."""
        headers = {"Idempotency-Key": key, "Client-Pid": str(os.getpid())}
        answer = self._http.post(f"{os.environ[ADDRESS_VARIABLE]}/{mode}", json={"text": text}, headers=headers)
        answer.raise_for_status()
        return f"booked {text}"

    def found(self, key: str) -> int:
        answer = self._http.get(f"{os.environ[ADDRESS_VARIABLE]}/found", params={"key": key})
        answer.raise_for_status()
        return int(answer.json()["count"])

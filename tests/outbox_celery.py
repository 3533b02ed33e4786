"""Real Celery processes for tests: workers and beats on the test's database, broker and event store."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from django.conf import settings
from django.db import connection

STOP_SECONDS = 10.0


class CeleryProcesses:
    """Started one by one; all are gone when the block ends."""

    def __init__(self, folder: Path, event_store_url: str, token: str = "token") -> None:
        database = urlsplit(os.environ["DATABASE_URL"])._replace(path=f"/{connection.settings_dict['NAME']}")
        self._folder = folder
        self._environment = os.environ | {
            "DATABASE_URL": database.geturl(), "TEMPORALITY_URL": event_store_url, "TEMPORALITY_TOKEN": token,
        }  # fmt: skip
        self.processes: list[subprocess.Popen[bytes]] = []

    def worker(self, queues: str = "outbox,kernel", threads: int = 4) -> subprocess.Popen[bytes]:
        return self._start(
            "worker", "--pool", "threads", "--concurrency", str(threads), "-Q", queues, "--without-gossip",
            "--without-mingle", "--hostname", f"w{len(self.processes)}@%h",
        )  # fmt: skip

    def beat(self) -> subprocess.Popen[bytes]:
        schedule = self._folder / f"schedule-{len(self.processes)}"
        return self._start("beat", "--schedule", str(schedule), "--pidfile=", "--max-interval", "1")

    def _start(self, *words: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "celery", "-A", "kernel_project", *words, "--loglevel", "WARNING"]
        with (self._folder / "celery.log").open("ab") as log:
            process = subprocess.Popen(
                command, env=self._environment, cwd=settings.BASE_DIR, stdout=log, stderr=subprocess.STDOUT
            )
        self.processes.append(process)
        return process

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait(STOP_SECONDS)

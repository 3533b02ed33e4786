"""Watches a running stack and starts again what ends, with a growing pause. Decides nothing about the services."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from kernel_project.devstack.errors import DevstackError
from kernel_project.devstack.process import Server

LOOK_SECONDS = 0.2
PAUSE_SECONDS_FIRST = 0.5
PAUSE_SECONDS_MAX = 30.0
STEADY_SECONDS = 30.0  # one that has lived this long starts with a short pause again


class Minder(threading.Thread):
    """Minds one service until `stopping` is set. `tell(name, sentence)` reports each end and each new start."""

    def __init__(self, server: Server, stopping: threading.Event, tell: Callable[[str, str], None]) -> None:
        super().__init__(name=f"minder of {server.name}", daemon=True)
        self.server, self.stopping, self.tell = server, stopping, tell
        self.pause_seconds = PAUSE_SECONDS_FIRST
        self.looks = threading.Lock()  # held while the server is looked at or started
        self.rests = False

    def rest(self) -> None:
        """Start nothing, and do not even look, until `wake`: somebody else has the server now."""
        with self.looks:
            self.rests = True

    def wake(self) -> None:
        self.rests = False

    def run(self) -> None:
        started_at = time.monotonic()
        while not self.stopping.wait(LOOK_SECONDS):
            with self.looks:
                if self.rests or self.server.alive():
                    continue
            lived = time.monotonic() - started_at
            self.pause_seconds = PAUSE_SECONDS_FIRST if lived > STEADY_SECONDS else self.pause_seconds
            why = f"ended {describe(self.server.return_code)} after {lived:.1f} s"
            self.tell(self.server.name, f"{why}; starting it again in {self.pause_seconds:g} s")
            started_at = self._start_again()

    def _start_again(self) -> float:
        """One try, after the pause. Returns when it was made; a failed try is seen as one more end."""
        if self.stopping.wait(self.pause_seconds):
            return time.monotonic()
        self.pause_seconds = min(2 * self.pause_seconds, PAUSE_SECONDS_MAX)
        tried_at = time.monotonic()
        try:
            with self.looks:
                if not self.rests:
                    self.server.start()
                    self.tell(self.server.name, "is ready again")
        except DevstackError as error:
            self.tell(self.server.name, f"could not be started again: {error}")
        return tried_at


def describe(code: int | None) -> str:
    if code is None:
        return "in an unknown way"
    return f"with code {code}" if code >= 0 else f"by signal {-code}"


def mind(services: Mapping[str, Server], stopping: threading.Event, tell: Callable[[str, str], None]) -> list[Minder]:
    """Start one minder per service. Set `stopping`, then join them, before the services are stopped."""
    minders = [Minder(server, stopping, tell) for server in services.values()]
    for minder in minders:
        minder.start()
    return minders

"""Whether each service that the kernel needs answers, for the home page. Waits for none longer than a moment."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from time import monotonic

from kernel_project import readiness

WAIT_SECONDS = 0.15  # of a page, while nothing is known yet; later what was last heard is shown at once
KEPT_SECONDS = 5.0  # many pages that refresh themselves ask no more often
SILENT_SECONDS = 10.0  # an answer that stays out so long is none
Check = Callable[[], str]
OUTSIDE: Mapping[str, Check] = {"Temporal": readiness.CHECKS["temporal"], "Redis": readiness.CHECKS["redis"]}


class Pulse:
    """The last words of the services outside the database. Each is asked by a thread of its own, one at a time."""

    def __init__(self, checks: Mapping[str, Check]) -> None:
        self._checks = checks
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(max_workers=len(checks), thread_name_prefix="health")
        self._asked: dict[str, tuple[float, Future[str]]] = {}
        self._words: dict[str, str] = {}

    def words(self) -> dict[str, str]:
        """By name: ok, or what is wrong, or that it was asked and has not answered yet."""
        with self._lock:
            for name, check in self._checks.items():
                self._ask(name, check)
            unheard = [asked for name, (_, asked) in self._asked.items() if name not in self._words]
        if unheard:
            wait_for(unheard, timeout=WAIT_SECONDS)
        with self._lock:
            for name, (since, asked) in self._asked.items():
                self._hear(name, since, asked)
            return dict(self._words)

    def _ask(self, name: str, check: Check) -> None:
        since, asked = self._asked.get(name, (0.0, None))
        if asked is None or (asked.done() and monotonic() - since > KEPT_SECONDS):
            self._asked[name] = (monotonic(), self._pool.submit(readiness.word, check))

    def _hear(self, name: str, since: float, asked: Future[str]) -> None:
        if asked.done():
            self._words[name] = asked.result()
        elif monotonic() - since > SILENT_SECONDS:
            self._words[name] = "does not answer"
        else:
            self._words.setdefault(name, "is being asked")


outside = Pulse(OUTSIDE)

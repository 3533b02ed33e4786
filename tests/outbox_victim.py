"""A publisher in a process of its own that dies at a named point, as by a power cut: SIGKILL, no clean-up."""

from __future__ import annotations

import os
import signal
import time
import warnings
from collections.abc import Callable
from typing import Any

from django.db import connections
from django.db.backends.postgresql.base import DatabaseWrapper

from outbox import parked, place
from outbox.destination import EventStore
from outbox.publisher import Publisher

DEATH_SECONDS_MAX = 30.0

POINTS = (
    "after the place", "after the claim", "after the read", "before the send", "after the send",
    "inside the advance", "after the advance", "after the note", "after a replay was taken",
)  # fmt: skip


def die(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def then(work: Callable[..., Any], after: Callable[[], None]) -> Callable[..., Any]:
    """`work`, and `after` when it is done."""

    def both(*arguments: Any, **named: Any) -> Any:
        result = work(*arguments, **named)
        after()
        return result

    return both


def arm(publisher: Any, point: str) -> None:
    """Let the publisher die there."""
    match point:
        case "after the place":
            place.take = then(place.take, die)
        case "after the claim":
            publisher._claim = then(publisher._claim, die)
        case "after the read":
            publisher._read = then(publisher._read, die)
        case "before the send":
            publisher.sink.deliver = die
        case "after the send":
            publisher.sink.deliver = then(publisher.sink.deliver, die)
        case "inside the advance":  # cursors moved, nothing parked, nothing committed
            parked.park = die
        case "after the advance":
            publisher._advance = then(publisher._advance, die)
        case "after the note":
            publisher._note = then(publisher._note, die)
        case "after a replay was taken":
            parked._settle_replay = die  # type: ignore[assignment]


def kill_at(point: str, url: str) -> None:
    """Let a publisher die there."""

    def publish() -> None:
        publisher = Publisher(EventStore(url, "token"))
        arm(publisher, point)
        publisher.run(10.0)

    kill_in(publish, point)


def kill_in(work: Callable[[], Any], point: str = "") -> None:
    """Do work that ends in `die`, in a fork of this process: it shares nothing with us but the database's address."""
    database = connections["default"]
    assert isinstance(database, DatabaseWrapper)
    database.close()
    database.close_pool()  # type: ignore[attr-defined]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # our other threads only serve, and hold nothing
        pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(1)
    assert _ended(pid) == -signal.SIGKILL, f"it did not die {point}"


def _ended(pid: int) -> int:
    deadline = time.monotonic() + DEATH_SECONDS_MAX
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    raise AssertionError("it neither died nor ended")

"""Python tools for a worker of its own process: they write to the ledger in LEDGER, and hang while HOLD exists."""

from __future__ import annotations

import os
import time
from pathlib import Path

from runs.boundary.contracts import Dispatch
from runs.boundary.effects.python import register
from tests.kernel import TEXT_SCHEMA, Ledger

HANG_SECONDS_MAX = 120.0


def _hold() -> None:
    deadline = time.monotonic() + HANG_SECONDS_MAX
    while Path(os.environ["HOLD"]).exists() and time.monotonic() < deadline:
        time.sleep(0.05)


def _write(dispatch: Dispatch, text: str) -> str:
    """Write, and hang before the answer."""
    Ledger(Path(os.environ["LEDGER"])).write(dispatch.idempotency_key, text)
    _hold()
    return f"wrote {text}"


def _read(dispatch: Dispatch, text: str) -> str:
    """Leave a trace of each look, and hang."""
    return _write(dispatch, text)


register("worker-tools-write", input_schema=TEXT_SCHEMA)(_write)
register("worker-tools-read", input_schema=TEXT_SCHEMA, effect="read")(_read)

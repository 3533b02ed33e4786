"""Tools for the drill: each writes one fsynced line per executed call to a ledger that the kernel does not know."""

from __future__ import annotations

import os
import time
from pathlib import Path

from runs.boundary.contracts import Dispatch
from runs.boundary.effects.python import register

LEDGER_VARIABLE = "DRILL_LEDGER"
SCHEMA = {
    "type": "object",
    "properties": {"text": {"type": "string"}, "seconds": {"type": "number"}},
    "required": ["text"],
    "additionalProperties": False,
}
KEY_SECONDS = 3_600


class Lost(Exception):
    """The answer never came back: whether the effect happened cannot be seen from here."""


def note(dispatch: Dispatch, text: str) -> str:
    with Path(os.environ[LEDGER_VARIABLE]).open("a") as ledger:
        ledger.write(f"{text} {dispatch.idempotency_key}\n")
        ledger.flush()
        os.fsync(ledger.fileno())
    return f"noted {text}"


@register("look", input_schema=SCHEMA, effect="read")
def look(dispatch: Dispatch, text: str, seconds: float = 0.0) -> str:
    """A read-only call that takes a while."""
    note(dispatch, f"began-{text}")
    time.sleep(seconds)
    return note(dispatch, text)


@register("pay", input_schema=SCHEMA, effect="write")
def pay(dispatch: Dispatch, text: str, seconds: float = 0.0) -> str:
    """A write with neither key nor probe."""
    answer = note(dispatch, text)
    time.sleep(seconds)
    return answer


@register("pay_and_lose", input_schema=SCHEMA, effect="write")
def pay_and_lose(dispatch: Dispatch, text: str) -> str:
    """A write whose answer is lost."""
    note(dispatch, text)
    raise Lost


@register("ask_first", input_schema=SCHEMA, effect="write")
def ask_first(dispatch: Dispatch, text: str) -> str:
    """A write that the drill's policy lets nobody make without asking."""
    return note(dispatch, text)

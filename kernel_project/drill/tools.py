"""Tools for the drill's rows: each books one line per executed call in the ledger's process."""

from __future__ import annotations

import time
from typing import Any

from kernel_project.drill.ledger_process import LedgerClient
from runs.boundary.contracts import Dispatch, ProbeAnswer, ProbeVerdict, Refused
from runs.boundary.effects.python import register

MODULE = __name__
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"text": {"type": "string"}, "seconds": {"type": "number"}},
    "required": ["text"],
    "additionalProperties": False,
}
_ledger = LedgerClient()


class Lost(Exception):
    """The answer never came back: whether the effect happened cannot be seen from here."""


def _note(dispatch: Dispatch, text: str) -> str:
    return _ledger.book("opaque", text, dispatch.idempotency_key)


@register("look", input_schema=SCHEMA, effect="read")
def look(dispatch: Dispatch, text: str, seconds: float = 0.0) -> str:
    """A read-only call that takes a while."""
    _note(dispatch, f"began-{text}")
    time.sleep(seconds)
    return _note(dispatch, text)


@register("pay", input_schema=SCHEMA, effect="write")
def pay(dispatch: Dispatch, text: str, seconds: float = 0.0) -> str:
    """A write with neither key nor probe."""
    answer = _note(dispatch, text)
    time.sleep(seconds)
    return answer


@register("pay_and_lose", input_schema=SCHEMA, effect="write")
def pay_and_lose(dispatch: Dispatch, text: str) -> str:
    """A write whose answer is lost."""
    _note(dispatch, text)
    raise Lost


@register("pay_refused", input_schema=SCHEMA, effect="write")
def pay_refused(_: Dispatch, text: str) -> str:
    """A write that the other side rejects before doing anything."""
    raise Refused(f"the account of {text} is closed")


def _find(dispatch: Dispatch) -> ProbeAnswer:
    count = _ledger.found(dispatch.idempotency_key)
    return ProbeAnswer(verdict=ProbeVerdict.ONE if count == 1 else ProbeVerdict.CANNOT_TELL)


@register("pay_probed", input_schema=SCHEMA, effect="write", probe=_find)
def pay_probed(dispatch: Dispatch, text: str) -> str:
    """A write that can be looked for by its key."""
    return _note(dispatch, text)


@register("ask_first", input_schema=SCHEMA, effect="write")
def ask_first(dispatch: Dispatch, text: str) -> str:
    """A write that the drill's policy lets nobody make without asking."""
    return _note(dispatch, text)


@register("ask_briefly", input_schema=SCHEMA, effect="write")
def ask_briefly(dispatch: Dispatch, text: str) -> str:
    """The same, with a deadline that passes at once."""
    return _note(dispatch, text)


@register("ask_or_cancel", input_schema=SCHEMA, effect="write")
def ask_or_cancel(dispatch: Dispatch, text: str) -> str:
    """The same, and the run is cancelled when it passes."""
    return _note(dispatch, text)

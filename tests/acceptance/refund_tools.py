"""Refunds as a worker of its own process makes them: each POST goes to the external ledger, and gives up soon."""

from __future__ import annotations

from kernel_project.drill.ledger_process import LedgerClient
from runs.boundary.contracts import Dispatch, ProbeAnswer, ProbeVerdict
from runs.boundary.effects.python import register

MODULE = __name__
PATIENCE_SECONDS = 3.0  # of the client; the slow ledger answers after 15 s
KEY_SECONDS = 24 * 3600
SCHEMA = {
    "type": "object",
    "properties": {"order": {"type": "string"}, "amount": {"type": "integer"}},
    "required": ["order", "amount"],
    "additionalProperties": False,
}
_ledger = LedgerClient(PATIENCE_SECONDS)


@register("refund-keyed", input_schema=SCHEMA, idempotent_for_seconds=KEY_SECONDS)
def refund_keyed(dispatch: Dispatch, order: str, amount: int) -> str:
    """Pay a refund; the ledger honours the key."""
    return _ledger.book("keyed", order, dispatch.idempotency_key)


@register("refund-opaque", input_schema=SCHEMA)
def refund_opaque(dispatch: Dispatch, order: str, amount: int) -> str:
    """Pay a refund; the ledger ignores the key."""
    return _ledger.book("opaque", order, dispatch.idempotency_key)


def look(dispatch: Dispatch) -> ProbeAnswer:
    """Look in the ledger's statement for the reference."""
    count = _ledger.found(dispatch.idempotency_key)
    verdicts = {0: ProbeVerdict.ABSENT, 1: ProbeVerdict.ONE}
    return ProbeAnswer(verdict=verdicts.get(count, ProbeVerdict.MANY))


register("refund-probed", input_schema=SCHEMA, probe=look)(refund_opaque)

"""Tokens and cost of a run: reserved before a call of the model, settled after it. Decides; reads and writes nothing.

A reservation is charged when the call leaves. An answer that says what it used corrects the charge; where nobody says,
because the worker died or the provider kept silent, the reservation stands: unknown is not zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_UP, Decimal
from typing import Literal

from kernel_project.primitives.canonical import canonical_json
from runs.boundary.contracts import Charge
from runs.boundary.models.contracts import AssistantMessage, Message, ModelRequest, Usage
from runs.contracts import Limits
from runs.models import Operation

BYTES_PER_TOKEN = 3  # of prose it is 4, of code and of most other scripts about 3
BYTES_PER_MESSAGE = 24  # what stands around each message and each tool in a request
LAST_OUTPUT_TOKENS_MIN = 64  # with less left, an answer would be cut before it says anything
PER = Decimal(1_000_000)  # prices are for a million tokens
COST_STEP = Decimal("0.000000001")  # what a column holds

Named = Literal["tokens", "cost", "price_unknown"]


@dataclass(frozen=True)
class Price:
    """For a million tokens each, in the one currency of all the project's prices."""

    input: Decimal
    output: Decimal
    cached_input: Decimal


@dataclass(frozen=True)
class Allowance:
    """What a call may use at most; its answer may have `output_tokens`."""

    charge: Charge
    output_tokens: int


def spent(rows: Sequence[Operation]) -> Charge:
    """What the run has used or reserved so far."""
    return Charge(sum(row.tokens_charged for row in rows), sum((row.cost_charged for row in rows), Decimal(0)))


def allowance(
    request: ModelRequest, limits: Limits, price: Price | None, used: Charge, *, last: bool
) -> Allowance | Named:
    """The reservation for a call, or the name of the limit that it does not fit into.

    The `last` call of a run is made shorter where that lets it fit.
    """
    if limits.cost_max is not None and price is None:
        return "price_unknown"
    tokens = input_tokens(request)
    output = request.max_output_tokens
    if limits.tokens_max is not None:
        room = limits.tokens_max - used.tokens - tokens
        if (output := _cut(output, room, last=last)) > room:
            return "tokens"
    if limits.cost_max is not None and price is not None:
        left = limits.cost_max - used.cost - _cost(tokens, price.input)
        room = int(left * PER / price.output) if price.output else output
        if left < 0 or (output := _cut(output, room, last=last)) > room:
            return "cost"
    return Allowance(_charge(tokens, output, price), output)


def _cut(output: int, room: int, *, last: bool) -> int:
    return max(min(output, room), min(output, LAST_OUTPUT_TOKENS_MIN)) if last else output


def input_tokens(request: ModelRequest) -> int:
    """About how many tokens a request has, rather too many than too few."""
    texts = [request.instructions, *(text for message in request.messages for text in _texts(message))]
    texts += [f"{tool.name}{tool.description}{canonical_json(tool.input_schema)}" for tool in request.tools]
    around = BYTES_PER_MESSAGE * (1 + len(request.messages) + len(request.tools))
    return -(-(around + sum(map(_size, texts))) // BYTES_PER_TOKEN)


def _texts(message: Message) -> list[str]:
    if isinstance(message, AssistantMessage):
        return [message.text, *(f"{call.name}{call.arguments}" for call in message.calls)]
    return [message.text]


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def settled(usage: Usage, price: Price | None) -> Charge | None:
    """What a call used, by the provider's word; None if it did not say."""
    if usage.input_tokens is None or usage.output_tokens is None:
        return None
    charge = _charge(usage.input_tokens, usage.output_tokens, price)
    cached = min(usage.cached_input_tokens or 0, usage.input_tokens)
    if price is None or not cached:
        return charge
    return Charge(charge.tokens, charge.cost - _cost(cached, price.input) + _cost(cached, price.cached_input))


def _charge(tokens_in: int, tokens_out: int, price: Price | None) -> Charge:
    cost = _cost(tokens_in, price.input) + _cost(tokens_out, price.output) if price else Decimal(0)
    return Charge(tokens_in + tokens_out, cost)


def _cost(tokens: int, per_million: Decimal) -> Decimal:
    return (tokens * per_million / PER).quantize(COST_STEP, ROUND_UP)

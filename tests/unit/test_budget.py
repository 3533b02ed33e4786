"""Tokens and cost: what a call is charged, and that no call fits that could break the limit."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runs.boundary.contracts import NOTHING, Charge
from runs.boundary.models.contracts import ModelRequest, Usage, UserMessage
from runs.contracts import Limits
from runs.loop import budget
from runs.loop.budget import Allowance, Price

PRICE = Price(input=Decimal(2), output=Decimal(10), cached_input=Decimal("0.5"))


def request(text="x" * 300, output=1_000) -> ModelRequest:
    return ModelRequest(
        model="scripted:x.yaml", messages=(UserMessage(text=text),), max_output_tokens=output, timeout_seconds=1,
        request_id="r",
    )  # fmt: skip


def allowed(limits, used=NOTHING, price=PRICE, last=False, **more):
    return budget.allowance(request(**more), Limits(**limits), price, used, last=last)


def test_without_limits_a_call_is_charged_its_input_and_the_longest_answer():
    assert allowed({}) == Allowance(Charge(1_116, Decimal("0.010232")), 1_000)


def test_a_call_that_might_break_a_limit_is_not_made():
    assert allowed({"tokens_max": 1_116}).charge.tokens == 1_116
    assert allowed({"tokens_max": 1_115}) == "tokens"
    assert allowed({"tokens_max": 1_116}, used=Charge(1, Decimal(0))) == "tokens"
    assert isinstance(allowed({"cost_max": "0.010233"}), Allowance)
    assert allowed({"cost_max": "0.010231"}) == "cost"


def test_the_last_call_is_made_shorter_so_that_it_fits_and_left_out_where_that_does_not_help():
    assert allowed({"tokens_max": 500}, last=True) == Allowance(Charge(500, Decimal("0.004072")), 384)
    assert allowed({"tokens_max": 150}, last=True) == "tokens"
    assert allowed({"cost_max": "0.005"}, last=True).output_tokens == 476
    assert allowed({"cost_max": "0.0005"}, last=True) == "cost"
    assert allowed({"cost_max": "0.0001"}, last=True) == "cost"


def test_a_limit_on_cost_without_a_price_is_no_limit_that_could_be_held():
    assert allowed({"cost_max": 5}, price=None) == "price_unknown"
    assert allowed({}, price=None).charge.cost == 0


def test_what_the_provider_says_is_settled_and_unknown_is_not_zero():
    assert budget.settled(Usage(input_tokens=100, output_tokens=10), PRICE) == Charge(110, Decimal("0.0003"))
    cached = Usage(input_tokens=100, output_tokens=10, cached_input_tokens=60)
    assert budget.settled(cached, PRICE) == Charge(110, Decimal("0.00021"))
    assert budget.settled(Usage(input_tokens=100), PRICE) is None


@pytest.mark.parametrize("text", ["ascii only", "グラフ", "Ωμέγα", "\ud800"])
def test_texts_of_any_script_are_measured(text):
    assert budget.input_tokens(request(text)) >= len(text) / 2


amounts = st.decimals(0, 100, places=6)


@given(
    st.integers(1, 5_000), st.decimals("0.000001", 1, places=6), st.integers(0, 6_000), amounts, amounts, st.booleans()
)
def test_no_reservation_goes_beyond_a_limit(tokens_max, cost_max, used, price_in, price_out, last):
    price = Price(price_in, price_out, price_in)
    spent = Charge(used, Decimal(used) / 1_000_000)
    found = allowed({"tokens_max": tokens_max, "cost_max": cost_max}, spent, price, last)
    if isinstance(found, Allowance):
        assert spent.tokens + found.charge.tokens <= tokens_max
        assert spent.cost + found.charge.cost <= cost_max + 2 * budget.COST_STEP

"""The projection's rules: any order of arrival gives the same item, and a late event moves nothing back."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from temporality.projection.circles import circles
from temporality.projection.folds import OPINIONS_MAX, Fact, Subject, fold, status_of

NOW = datetime(2025, 3, 1, tzinfo=UTC)


def fact(kind: str, number: int = 0, sequence: int | None = None, **data: Any) -> Fact:
    subject = data.get("knowledge_id") or data.get("operation_id") or ""
    when = f"2025-03-01T10:{number:02}:00.000000Z"
    parents = data.pop("parents", [])
    name = f"e-{kind}-{number}"
    return Fact(number, "s", name, "p", "r", kind, subject, "actor", sequence, parents, NOW, "", when, data)


def operation(*facts: Fact) -> tuple[str, str]:
    registers = fold(facts)[Subject("p", "operation", "s", "o")]
    return status_of("operation", registers), registers["status"][1]["effect"]


def knowledge(*facts: Fact) -> str:
    return status_of("knowledge", fold(facts)[Subject("p", "knowledge", "", "k")])


LIFE = [
    fact("approval.requested", 1, 1, operation_id="o"),
    fact("approval.granted", 2, 2, operation_id="o"),
    fact("tool.started", 3, 3, operation_id="o", tool="pay"),
    fact("tool.failed", 4, 4, operation_id="o", effect="uncertain"),
    fact("operation.probed", 5, 5, operation_id="o", verdict="absent"),
    fact("operation.reconciled", 6, 6, operation_id="o", effect="none", note="not there"),
    fact("tool.started", 7, 7, operation_id="o", attempt=2),
    fact("tool.completed", 8, 8, operation_id="o"),
]
BELIEFS = [
    fact("knowledge.proposed", 1, knowledge_id="k", proposition="the first"),
    fact("knowledge.proposed", 2, knowledge_id="k", proposition="the second"),
    fact("knowledge.used", 3, knowledge_id="k"),
    fact("knowledge.confirmed", 4, knowledge_id="k"),
    fact("knowledge.challenged", 5, knowledge_id="k"),
    fact("knowledge.linked", 6, knowledge_id="k", target_id="t", relation="supports"),
    fact("knowledge.confirmed", 7, knowledge_id="k"),
    fact("knowledge.corrected", 8, knowledge_id="k"),
    fact("knowledge.confirmed", 9, knowledge_id="k"),
]


def test_an_operation_goes_through_its_states() -> None:
    seen = [operation(*LIFE[:n]) for n in range(1, len(LIFE) + 1)]
    assert seen == [
        ("awaiting_approval", ""), ("approved", ""), ("dispatched", ""), ("uncertain", "uncertain"),
        ("uncertain", "uncertain"), ("reconciled", "none"), ("dispatched", ""), ("succeeded", "occurred"),
    ]  # fmt: skip


@given(st.permutations([*LIFE, *BELIEFS]))
def test_any_order_of_arrival_gives_the_same_items(shuffled: list[Fact]) -> None:
    assert fold(shuffled) == fold([*LIFE, *BELIEFS])


def test_a_late_start_does_not_reopen_what_is_settled() -> None:
    assert operation(LIFE[7], LIFE[2], LIFE[6]) == ("succeeded", "occurred")


def test_without_sequences_meaning_comes_before_clocks() -> None:
    started, completed = fact("tool.started", 9, operation_id="o"), fact("tool.completed", 1, operation_id="o")
    assert operation(completed, started) == ("succeeded", "occurred")


def test_a_failure_that_says_nothing_of_its_effect_is_uncertain() -> None:
    assert operation(fact("tool.failed", 1, 1, operation_id="o")) == ("uncertain", "uncertain")


def test_a_failed_model_call_has_no_effect() -> None:
    assert operation(fact("model.failed", 1, 1, operation_id="o")) == ("failed", "none")


def test_a_failure_whose_effect_occurred_is_failed_and_says_so() -> None:
    assert operation(fact("tool.failed", 1, 1, operation_id="o", effect="occurred")) == ("failed", "occurred")


def test_the_end_of_a_knowledge_item_is_final() -> None:
    assert knowledge(*BELIEFS) == "corrected"
    assert knowledge(*BELIEFS[:7]) == "confirmed"
    assert knowledge(*BELIEFS[:5]) == "challenged"


def test_what_was_never_proposed_waits_for_its_proposal() -> None:
    assert knowledge(BELIEFS[3]) == "unproposed"
    assert knowledge(BELIEFS[3], BELIEFS[0]) == "confirmed"


def test_the_first_proposition_stands_and_the_others_are_counted() -> None:
    registers = fold(reversed(BELIEFS))[Subject("p", "knowledge", "", "k")]
    assert registers["proposition"][1] == "the first"
    assert len(registers["propositions"]) == 2


def test_an_explicit_cause_comes_before_its_effect_whatever_the_clocks_say() -> None:
    confirmed = fact("knowledge.confirmed", 9, knowledge_id="k")
    challenged = fact("knowledge.challenged", 5, knowledge_id="k", parents=[confirmed.event_id])
    assert knowledge(BELIEFS[0], confirmed, challenged) == "challenged"


def test_many_repeated_proposals_do_not_take_an_opinion_away() -> None:
    again = [fact("knowledge.proposed", n, knowledge_id="k", proposition="the first") for n in range(10, 520)]
    assert knowledge(BELIEFS[0], BELIEFS[3], *again) == "confirmed"
    assert knowledge(*again, BELIEFS[3], BELIEFS[0]) == "confirmed"


def test_many_opinions_are_kept_within_a_limit() -> None:
    many = [fact("knowledge.confirmed", n, knowledge_id="k") for n in range(10, 20 + OPINIONS_MAX)]
    registers = fold([BELIEFS[0], *many])[Subject("p", "knowledge", "", "k")]
    assert len(registers["opinions"]) == OPINIONS_MAX
    assert status_of("knowledge", registers) == "confirmed"


@pytest.mark.parametrize("end", ["run.completed", "run.failed", "run.cancelled"])
def test_a_run_that_ended_without_a_sequence_is_not_running_again(end: str) -> None:
    ended, started = fact(end, 5), fact("run.started", 1, 1)
    for facts in ([ended, started], [started, ended]):
        registers = fold(facts)[Subject("p", "run", "s", "r")]
        assert status_of("run", registers) == end.removeprefix("run.")
        assert registers["started"][1] == started.occurred_at


def test_only_what_can_reach_itself_lies_on_a_circle() -> None:
    edges = [(1, 2), (2, 3), (3, 1), (4, 1), (3, 5), (7, 8), (8, 7), (5, 7)]
    assert sorted(map(sorted, circles(edges))) == [[1, 2, 3], [7, 8]]


def test_a_very_long_chain_has_no_circle() -> None:
    assert circles((n, n + 1) for n in range(50_000)) == []

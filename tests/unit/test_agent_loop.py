"""The pure loop: each thing that can happen has one next step, and no order of happenings goes on for ever."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runs.contracts import Limits
from runs.loop import agent_loop
from runs.loop.agent_loop import MODEL_ATTEMPTS_MAX, TURNS_LOST_MAX, Act, Finish, Think
from runs.loop.contracts import LoopState, Plan, Thought, Ticket
from runs.models import Operation

RUN = UUID("018f0000-0000-7000-8000-000000000001")
FIRST = LoopState(turn=1)


def plan(on_uncertain="wait", **limits) -> Plan:
    return Plan(run_id=RUN, limits=Limits(**limits), on_uncertain=on_uncertain)


def ticket(state="succeeded", **more) -> Ticket:
    return Ticket(operation_id=uuid4(), state=state, **more)


def wants(*states: str) -> Thought:
    return Thought(kind="calls", tickets=tuple(ticket(state) for state in states))


def test_the_first_step_asks_the_model_with_tools():
    state, step = agent_loop.begin(plan(), LoopState())
    assert (state.turn, step) == (1, Think(tools=True, calls_allowed=32))


def test_an_answer_completes_the_run():
    assert agent_loop.after_thought(plan(), FIRST, Thought(kind="answer"))[1] == Finish("completed")


@pytest.mark.parametrize("code", ["", "tokens"])
def test_a_message_that_no_turn_is_left_for_does_not_make_an_answered_run_fail(code):
    answered = LoopState(turn=2, answered=True)
    step = agent_loop.begin(plan(turns_max=2), answered)[1]
    if code:
        step = agent_loop.after_thought(plan(), answered, Thought(kind="limit", code=code))[1]
    assert (step.outcome, step.code, step.unheard) == ("completed", "", True)
    assert "was not read" in step.message
    assert not agent_loop.after_thought(plan(), answered, wants("proposed"))[0].answered


def test_calls_are_brought_to_their_ends_and_counted_unless_blocked():
    state, step = agent_loop.after_thought(plan(), FIRST, wants("proposed", "blocked", "awaiting_approval"))
    assert isinstance(step, Act)
    assert state.tool_calls == 2


@pytest.mark.parametrize(("kind", "code"), [("failed", "authentication"), ("refused", "content_filter")])
def test_a_failure_that_cannot_pass_ends_the_run_with_its_name(kind, code):
    step = agent_loop.after_thought(plan(), FIRST, Thought(kind=kind, code=code))[1]
    assert (step.outcome, step.code) == ("failed", f"model_{code}")


def test_a_stopped_turn_cancels():
    assert agent_loop.after_thought(plan(), FIRST, Thought(kind="stopped"))[1] == Finish("cancelled")


def test_an_effect_that_was_not_undone_ends_the_run_under_its_name():
    step = agent_loop.after_thought(plan(), FIRST, Thought(kind="not_undone", code="compensation_rejected"))[1]
    assert (step.outcome, step.code) == ("failed", "compensation_rejected")


def test_a_failure_that_can_pass_is_tried_again_with_growing_pauses_and_then_the_turn_is_lost():
    state, failed = FIRST, Thought(kind="failed", code="overloaded", retryable=True)
    delays = []
    for _ in range(MODEL_ATTEMPTS_MAX - 1):
        state, step = agent_loop.after_thought(plan(), state, failed)
        delays.append(step.delay_seconds)
    assert delays == [1.0, 2.0, 4.0]
    state, step = agent_loop.after_thought(plan(), state, failed)
    assert (state.turn, state.model_attempt, state.turns_lost, step.delay_seconds) == (2, 1, 1, 0.0)


@pytest.mark.parametrize(("asked", "waited"), [(7.5, 7.5), (0.0, 0.0), (1e9, 3600.0), (-5.0, 0.0)])
def test_the_providers_retry_after_is_obeyed_within_bounds(asked, waited):
    failed = Thought(kind="failed", code="rate_limited", retryable=True, retry_after_seconds=asked)
    assert agent_loop.after_thought(plan(), FIRST, failed)[1].delay_seconds == waited


@pytest.mark.parametrize(
    ("thought", "code"),
    [
        (Thought(kind="cut"), "model_output_cut"),
        (Thought(kind="empty"), "model_empty_answer"),
        (Thought(kind="failed", code="timeout", retryable=True), "model_timeout"),
    ],
)
def test_lost_turns_in_a_row_end_the_run_with_the_last_ones_name(thought, code):
    state = LoopState(turn=TURNS_LOST_MAX, turns_lost=TURNS_LOST_MAX - 1, model_attempt=MODEL_ATTEMPTS_MAX)
    assert agent_loop.after_thought(plan(), state, thought)[1].code == code


def test_a_turn_with_calls_forgets_lost_turns():
    assert agent_loop.after_thought(plan(), LoopState(turn=3, turns_lost=2), wants("proposed"))[0].turns_lost == 0


@pytest.mark.parametrize(
    ("state", "name"),
    [
        (LoopState(turn=5), "turns"),
        (LoopState(turn=1, tool_calls=9), "tool_calls"),
        (LoopState(turn=1, failures={"a": 3}), "same_failure"),
    ],
)
def test_a_limit_leaves_one_call_without_tools(state, name):
    begun, step = agent_loop.begin(plan(turns_max=5, tool_calls_max=9), state)
    assert (begun.limit, step) == (name, Think(tools=False, calls_allowed=0))


@pytest.mark.parametrize(
    "thought",
    [Thought(kind="answer"), wants("blocked"), Thought(kind="cut"), Thought(kind="failed", code="timeout")],
    ids=lambda thought: thought.kind,
)
def test_after_the_last_call_the_run_ends_with_the_limits_name_whatever_came_of_it(thought):
    step = agent_loop.after_thought(plan(), LoopState(turn=6, limit="turns"), thought)[1]
    assert (step.outcome, step.code) == ("failed", "limit_turns")


def test_a_call_that_does_not_fit_leaves_one_without_tools_in_the_same_turn_unless_that_was_taken():
    for begun, turn in ((False, 4), (True, 5)):
        thought = Thought(kind="limit", code="tokens", begun=begun)
        state, step = agent_loop.after_thought(plan(), LoopState(turn=4), thought)
        assert (state.turn, state.limit, step) == (turn, "tokens", Think(tools=False, calls_allowed=0))


def test_a_last_call_that_does_not_fit_is_left_out():
    step = agent_loop.after_thought(plan(), LoopState(turn=4, limit="turns"), Thought(kind="limit", code="cost"))[1]
    assert step.code == "limit_turns"


def test_when_the_time_is_over_one_call_without_tools_is_left():
    for state, step in (
        agent_loop.begin(plan(), LoopState(turn=4), late=True),
        agent_loop.after_acts(plan(), LoopState(turn=4), [ticket()], late=True),
        agent_loop.after_thought(plan(), LoopState(turn=4), Thought(kind="cut"), late=True),
        agent_loop.out_of_time(plan(), LoopState(turn=4)),
    ):
        assert (state.turn, state.limit, step) == (5, "wall_time", Think(tools=False, calls_allowed=0))
    assert agent_loop.out_of_time(plan(), LoopState(turn=4, limit="turns"))[1].code == "limit_turns"


def test_an_agent_without_tool_calls_is_offered_no_tools():
    assert agent_loop.begin(plan(tool_calls_max=0), LoopState())[1] == Think(tools=False, calls_allowed=0)


def test_no_more_calls_are_allowed_than_the_run_has_left():
    step = agent_loop.begin(plan(tool_calls_max=10, calls_per_turn_max=8), LoopState(turn=1, tool_calls=7))[1]
    assert step.calls_allowed == 3


def test_the_same_failure_counts_once_a_turn_also_beside_others():
    state = FIRST
    for _ in range(3):
        tickets = [ticket("failed", fingerprint=name) for name in "aba"]
        state, _ = agent_loop.after_acts(plan(same_failure_max=3), state, tickets)
    assert state.failures == {"a": 3, "b": 3}
    assert state.limit == "same_failure"


def test_a_success_in_between_starts_the_count_again():
    state, _ = agent_loop.after_acts(plan(), FIRST, [ticket("failed", fingerprint="a")])
    state, _ = agent_loop.after_acts(plan(), state, [ticket("succeeded")])
    assert state.failures == {}


def test_another_failure_in_between_does_not():
    state = FIRST
    for name in ("a", "b", "a"):
        state, _ = agent_loop.after_acts(plan(), state, [ticket("failed", fingerprint=name)])
    assert state.failures == {"b": 1, "a": 2}


def test_an_uncertain_call_ends_the_run_of_an_agent_that_says_so():
    step = agent_loop.after_acts(plan(on_uncertain="fail"), FIRST, [ticket("uncertain")])[1]
    assert step.code == "uncertain_operation"


@pytest.mark.parametrize(("policy", "waits"), [("wait", True), ("continue", False), ("fail", False)])
def test_an_uncertain_call_holds_the_turn_only_where_the_agent_waits(policy, waits):
    assert agent_loop.is_open(plan(on_uncertain=policy), ticket("uncertain")) is waits


@pytest.mark.parametrize(("verdict", "is_open"), [("none", True), ("occurred", False), ("unknown", False)])
def test_a_reconciled_call_goes_again_only_if_it_did_not_happen(verdict, is_open):
    assert agent_loop.is_open(plan(), ticket("reconciled", verdict=verdict)) is is_open


@pytest.mark.parametrize("state", Operation.State.values)
def test_each_state_is_either_closed_or_waits_for_something(state):
    expected = state in ("proposed", "awaiting_approval", "dispatched", "uncertain")
    assert agent_loop.is_open(plan(), ticket(state)) is expected


def test_rewind_is_the_state_before_the_turn():
    before = LoopState(turn=4, tool_calls=2)
    assert agent_loop.rewind(agent_loop.begin(plan(), before)[0]) == before


# Hostile orders ----------------------------------------------------------------------------------------------------

thoughts = st.one_of(
    st.sampled_from(["answer", "cut", "empty", "refused", "stopped"]).map(lambda kind: Thought(kind=kind, code="x")),
    st.builds(Thought, kind=st.just("failed"), code=st.just("x"), retryable=st.booleans()),
    st.lists(st.sampled_from(Operation.State.values), min_size=1, max_size=4).map(lambda states: wants(*states)),
)
closed = st.sampled_from(sorted(agent_loop.CLOSED))
limits = st.builds(
    dict, turns_max=st.integers(1, 6), tool_calls_max=st.integers(0, 6), same_failure_max=st.integers(1, 3)
)


@settings(deadline=None)
@given(limits, st.data())
def test_every_run_ends_within_its_limits_whatever_the_model_and_the_tools_do(given_limits, data):
    agreed = plan(**given_limits)
    state, step = agent_loop.begin(agreed, LoopState())
    asked = 0
    while not isinstance(step, Finish):
        if isinstance(step, Think):
            asked += 1
            assert asked <= (agreed.limits.turns_max + 1) * MODEL_ATTEMPTS_MAX
            assert step.tools is (step.calls_allowed > 0)
            state, step = agent_loop.after_thought(agreed, state, data.draw(thoughts))
        else:
            ends = [one.model_copy(update={"state": data.draw(closed), "fingerprint": "f"}) for one in step.tickets]
            state, step = agent_loop.after_acts(agreed, state, ends)
    assert state.turn <= agreed.limits.turns_max + 1

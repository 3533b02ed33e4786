"""The agent's loop as a pure function: state and what happened give the next step. No clock, database or network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runs.loop.contracts import LoopState, Outcome, Plan, Thought, Ticket

MODEL_ATTEMPTS_MAX = 4  # of one turn, counting the first; then the turn is lost
TURNS_LOST_MAX = 3  # in a row: cut, empty or failed; then the run fails with the last one's name
BACKOFF_FIRST_SECONDS = 1.0
BACKOFF_MAX_SECONDS = 60.0  # a provider's own Retry-After may be longer, see RETRY_AFTER_MAX_SECONDS
RETRY_AFTER_MAX_SECONDS = 3_600.0

CLOSED = frozenset(
    {"denied", "rejected", "expired", "withdrawn", "blocked", "succeeded", "tool_error", "failed", "reconciled"}
)
FAILING = CLOSED - {"succeeded", "reconciled"}


@dataclass(frozen=True)
class Think:
    """Ask the model, after `delay_seconds`."""

    tools: bool
    calls_allowed: int
    delay_seconds: float = 0.0


@dataclass(frozen=True)
class Act:
    """Bring these calls to their ends."""

    tickets: tuple[Ticket, ...]


@dataclass(frozen=True)
class Finish:
    """End the run under this name."""

    outcome: Outcome
    code: str = ""
    message: str = ""


Step = Think | Act | Finish


def begin(plan: Plan, state: LoopState) -> tuple[LoopState, Step]:
    """The next turn, or the last one when a limit is reached."""
    if state.turn >= plan.limits.turns_max and not state.limit:
        state = state.model_copy(update={"limit": "turns"})
    if state.tool_calls >= plan.limits.tool_calls_max and plan.limits.tool_calls_max and not state.limit:
        state = state.model_copy(update={"limit": "tool_calls"})
    state = state.model_copy(update={"turn": state.turn + 1, "model_attempt": 1})
    return state, _think(plan, state)


def rewind(state: LoopState) -> LoopState:
    """The state before `begin` took the next turn: what a new execution starts from."""
    return state.model_copy(update={"turn": state.turn - 1})


def after_thought(plan: Plan, state: LoopState, thought: Thought) -> tuple[LoopState, Step]:
    """What follows an answer of the model, or its failure."""
    match thought.kind:
        case "stopped":
            return state, Finish("cancelled")
        case "failed" if thought.retryable and state.model_attempt < MODEL_ATTEMPTS_MAX:
            again = state.model_copy(update={"model_attempt": state.model_attempt + 1})
            return again, _think(plan, again, delay_seconds=backoff_seconds(state.model_attempt, thought))
        case "failed" if not thought.retryable:
            return state, Finish("failed", f"model_{thought.code}", "the model call failed for good")
        case "refused":
            return state, Finish("failed", f"model_{thought.code}", "the model or its provider refused to answer")
        case "answer":
            return state, _limit_end(state) if state.limit else Finish("completed")
        case "calls":
            calls = state.tool_calls + sum(ticket.state != "blocked" for ticket in thought.tickets)
            return state.model_copy(update={"turns_lost": 0, "tool_calls": calls}), Act(thought.tickets)
        case _:
            return _lost(plan, state, thought)


def _lost(plan: Plan, state: LoopState, thought: Thought) -> tuple[LoopState, Step]:
    """A turn that gave nothing: ask once more, but not for ever."""
    lost = state.turns_lost + 1
    if state.limit:
        return state, _limit_end(state)
    if lost >= TURNS_LOST_MAX:
        name = {"cut": "output_cut", "empty": "empty_answer"}.get(thought.kind, thought.code)
        return state, Finish("failed", f"model_{name}", f"{lost} turns in a row gave nothing to go on with")
    return begin(plan, state.model_copy(update={"turns_lost": lost}))


def after_acts(plan: Plan, state: LoopState, tickets: Sequence[Ticket]) -> tuple[LoopState, Step]:
    """What follows when all calls of a turn are at their ends."""
    if plan.on_uncertain == "fail" and any(ticket.state == "uncertain" for ticket in tickets):
        return state, Finish("failed", "uncertain_operation", "a call's effect is unclear and this agent stops then")
    for ticket in tickets:
        state = _count_failure(state, ticket)
    if state.failing_count >= plan.limits.same_failure_max and not state.limit:
        state = state.model_copy(update={"limit": "same_failure"})
    return begin(plan, state)


def _count_failure(state: LoopState, ticket: Ticket) -> LoopState:
    """The same call failing the same way, again and again."""
    if ticket.state not in FAILING:
        return state.model_copy(update={"failing": "", "failing_count": 0})
    if ticket.fingerprint == state.failing:
        return state.model_copy(update={"failing_count": state.failing_count + 1})
    return state.model_copy(update={"failing": ticket.fingerprint, "failing_count": 1})


def _think(plan: Plan, state: LoopState, delay_seconds: float = 0.0) -> Think:
    left = max(plan.limits.tool_calls_max - state.tool_calls, 0)
    return Think(not state.limit, min(left, plan.limits.calls_per_turn_max), delay_seconds)


def _limit_end(state: LoopState) -> Finish:
    return Finish("failed", f"limit_{state.limit}", f"the limit on {state.limit} was reached")


def backoff_seconds(attempt: int, thought: Thought) -> float:
    """How long to wait before attempt + 1: what the provider asks for, else doubling."""
    if thought.retry_after_seconds is not None:
        return min(thought.retry_after_seconds, RETRY_AFTER_MAX_SECONDS)
    return float(min(BACKOFF_FIRST_SECONDS * 2 ** (attempt - 1), BACKOFF_MAX_SECONDS))


def is_open(plan: Plan, ticket: Ticket) -> bool:
    """Whether a call still needs something before the turn can end."""
    if ticket.state == "uncertain":
        return plan.on_uncertain == "wait"
    if ticket.state == "reconciled":
        return ticket.verdict == "none"  # it did not happen, so it may go again
    return ticket.state not in CLOSED

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
FAILURES_MAX = 256  # different failing calls that are remembered, the latest ones

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
    unheard: bool = False  # also with messages that nobody has read


Step = Think | Act | Finish


def begin(plan: Plan, state: LoopState, *, late: bool = False) -> tuple[LoopState, Step]:
    """The next turn, or the last one when a limit is reached; `late`: the run's time is over."""
    limit = state.limit or _reached(plan, state, late=late)
    if limit and state.answered:  # the run had done its work: a message does not make it fail
        message = f"its last message was not read: the limit on {limit} leaves no turn for it"
        return state, Finish("completed", "", message, unheard=True)
    state = state.model_copy(update={"turn": state.turn + 1, "model_attempt": 1, "limit": limit})
    return state, _think(plan, state)


def _reached(plan: Plan, state: LoopState, *, late: bool) -> str:
    """The name of the limit that leaves only one more call of the model, without tools."""
    if late:
        return "wall_time"
    if state.turn >= plan.limits.turns_max:
        return "turns"
    if 0 < plan.limits.tool_calls_max <= state.tool_calls:
        return "tool_calls"
    if max(state.failures.values(), default=0) >= plan.limits.same_failure_max:
        return "same_failure"
    return ""


def rewind(state: LoopState) -> LoopState:
    """The state before `begin` took the next turn: what a new execution starts from."""
    return state.model_copy(update={"turn": state.turn - 1})


def after_thought(plan: Plan, state: LoopState, thought: Thought, *, late: bool = False) -> tuple[LoopState, Step]:
    """What follows an answer of the model, or its failure."""
    match thought.kind:
        case "stopped":
            return state, Finish("cancelled")
        case "not_undone":
            return state, Finish("failed", thought.code, "the effect that this run was to undo still stands")
        case "failed" if thought.retryable and state.model_attempt < MODEL_ATTEMPTS_MAX:
            again = state.model_copy(update={"model_attempt": state.model_attempt + 1})
            return again, _think(plan, again, delay_seconds=backoff_seconds(state.model_attempt, thought))
        case _ if state.limit:  # this was the last call, whatever came of it
            return state, _at_limit(state)
        case "limit":
            return begin(plan, (state if thought.begun else rewind(state)).model_copy(update={"limit": thought.code}))
        case "failed" if not thought.retryable:
            return state, Finish("failed", f"model_{thought.code}", "the model call failed for good")
        case "refused":
            return state, Finish("failed", f"model_{thought.code}", "the model or its provider refused to answer")
        case "answer":
            return state, Finish("completed")
        case "calls":
            calls = state.tool_calls + sum(ticket.state != "blocked" for ticket in thought.tickets)
            update = {"turns_lost": 0, "tool_calls": calls, "answered": False}
            return state.model_copy(update=update), Act(thought.tickets)
        case _:
            return _lost(plan, state, thought, late=late)


def out_of_time(plan: Plan, state: LoopState) -> tuple[LoopState, Step]:
    """What follows when the run's time is over before a failed call of the model could be made again."""
    return (state, _at_limit(state)) if state.limit else begin(plan, state, late=True)


def _at_limit(state: LoopState) -> Finish:
    return Finish("failed", f"limit_{state.limit}", f"the limit on {state.limit} was reached")


def _lost(plan: Plan, state: LoopState, thought: Thought, *, late: bool) -> tuple[LoopState, Step]:
    """A turn that gave nothing: ask once more, but not for ever."""
    lost = state.turns_lost + 1
    if lost >= TURNS_LOST_MAX:
        name = {"cut": "output_cut", "empty": "empty_answer"}.get(thought.kind, thought.code)
        return state, Finish("failed", f"model_{name}", f"{lost} turns in a row gave nothing to go on with")
    return begin(plan, state.model_copy(update={"turns_lost": lost}), late=late)


def after_acts(
    plan: Plan, state: LoopState, tickets: Sequence[Ticket], *, late: bool = False
) -> tuple[LoopState, Step]:
    """What follows when all calls of a turn are at their ends."""
    if plan.on_uncertain == "fail" and any(ticket.state == "uncertain" for ticket in tickets):
        return state, Finish("failed", "uncertain_operation", "a call's effect is unclear and this agent stops then")
    return begin(plan, state.model_copy(update={"failures": _failures(state.failures, tickets)}), late=late)


def _failures(known: dict[str, int], tickets: Sequence[Ticket]) -> dict[str, int]:
    """In how many turns each call failed the same way, with no success of any call in a turn between."""
    failing = {ticket.fingerprint for ticket in tickets if ticket.state in FAILING}
    nothing_succeeded = all(ticket.state in FAILING for ticket in tickets)
    kept = {name: count for name, count in known.items() if name not in failing and nothing_succeeded}
    counted = kept | {name: known.get(name, 0) + 1 for name in sorted(failing)}
    return dict(list(counted.items())[-FAILURES_MAX:])


def _think(plan: Plan, state: LoopState, delay_seconds: float = 0.0) -> Think:
    left = max(plan.limits.tool_calls_max - state.tool_calls, 0)
    allowed = 0 if state.limit else min(left, plan.limits.calls_per_turn_max)
    return Think(allowed > 0, allowed, delay_seconds)


def backoff_seconds(attempt: int, thought: Thought) -> float:
    """How long to wait before attempt + 1: what the provider asks for, else doubling."""
    if thought.retry_after_seconds is not None:
        return min(max(thought.retry_after_seconds, 0.0), RETRY_AFTER_MAX_SECONDS)
    return float(min(BACKOFF_FIRST_SECONDS * 2 ** (attempt - 1), BACKOFF_MAX_SECONDS))


def is_open(plan: Plan, ticket: Ticket) -> bool:
    """Whether a call still needs something before the turn can end."""
    if ticket.state == "uncertain":
        return plan.on_uncertain == "wait"
    if ticket.state == "reconciled":
        return ticket.verdict == "none"  # it did not happen, so it may go again
    return ticket.state not in CLOSED

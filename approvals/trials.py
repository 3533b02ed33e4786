"""Try a rule on the past: what it would have said of calls that were judged without it. Puts nothing in force."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from approvals import calls, policy
from approvals.contracts import AnswerName, Rule

CALLS_MAX = 1_000  # past calls that a trial looks at, the newest, unless another number is asked for
CALLS_LIMIT = 20_000
CHANGED_SHOWN_MAX = 50


@dataclass(frozen=True)
class Changed:
    """A call that would have been judged otherwise."""

    operation_id: UUID
    at: datetime
    agent: str
    tool: str
    was: AnswerName
    was_by: str
    would: AnswerName
    would_by: str


@dataclass(frozen=True)
class Trial:
    """What came of it: how many calls were looked at, how often the draft decided, and which answers it changed."""

    project: str
    looked_at: int
    decided: int
    moves: dict[tuple[AnswerName, AnswerName], int]
    changed: list[Changed]

    @property
    def changed_total(self) -> int:
        return sum(count for (was, would), count in self.moves.items() if was != would)

    @property
    def rows(self) -> list[tuple[AnswerName, AnswerName, int]]:
        """Answer then, answer with the draft, and how many calls."""
        return [(was, would, count) for (was, would), count in sorted(self.moves.items())]


def try_rule(project: str, rule: Rule, limit: int = CALLS_MAX) -> Trial:
    """Judge past calls by the rules in force and the draft, which takes the place of a rule of the same name.

    Raises Invalid for a draft that could not be put in force.
    """
    draft = policy.draft(project, rule)
    rules = [draft, *(one for one in policy.in_force(project) if one.name != rule.name)]
    moves: Counter[tuple[AnswerName, AnswerName]] = Counter()
    changed: list[Changed] = []
    decided = 0
    for past in calls.owner().past(project, min(limit, CALLS_LIMIT)):
        would = policy.among(rules, past.call)
        moves[past.answer, would.answer] += 1
        decided += would.policy_id == draft.id
        if past.answer != would.answer and len(changed) < CHANGED_SHOWN_MAX:
            changed.append(
                Changed(
                    past.operation_id, past.at, past.call.agent, past.call.tool,
                    past.answer, past.policy, would.answer, would.policy,
                )
            )  # fmt: skip
    return Trial(project, sum(moves.values()), decided, dict(moves), changed)

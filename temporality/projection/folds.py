"""What one event changes, and how changes meet: pure, and the same in any order of arrival.

An item is a map of registers. A register keeps the value of the greatest (or the least) event by its place in the run's
sequence, never by arrival, so a late event cannot move a state back, and any shuffle gives the same item.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from heapq import heapify, heappop, heappush
from typing import Any, Final, NamedTuple

from pydantic_core import from_json

from temporality import upcasting
from temporality.catalogue import KNOWLEDGE_PREFIX, KNOWLEDGE_TYPES

VALUE_CHARS_MAX: Final = 2048  # of a text that is kept for display; the event has it in full
HISTORY_MAX: Final = 500  # last changes of a knowledge item that are kept with it; the inbox has them all
OPINIONS_MAX: Final = 500  # last confirmations and challenges, apart from the history: they decide the state
LINKS_MAX: Final = 1_000  # links of a knowledge item
PROPOSITIONS_MAX: Final = 100  # different propositions under one id that are told apart
CAUSES_MAX: Final = 8  # causes of a knowledge event that order it among its like

Order = list[Any]
Registers = dict[str, Any]


class Fact(NamedTuple):
    """One event as the projection reads it. `data` is there only where something is folded from it."""

    position: int
    source_id: str
    event_id: str
    project: str
    run: str
    type: str
    subject_id: str
    actor_id: str
    sequence: int | None
    parents: list[str]
    received_at: datetime
    quarantine: str
    occurred_at: str
    data: Mapping[str, Any]

    @classmethod
    def of(cls, row: Sequence[Any]) -> Fact:
        """From the columns of the inbox, in this class' order, with the content last (None where nothing is folded)."""
        if row[12] is None or not (row[11] or row[5] in FOLDED_TYPES or row[5].startswith(KNOWLEDGE_PREFIX)):
            return cls._make((*row[:12], "", {}))
        content = from_json(row[12], cache_strings="keys")
        return cls._make((*row[:12], content["occurred_at"], upcasting.read(row[5], content.get("data", {}))))


class Subject(NamedTuple):
    """Which item an event is about. Knowledge belongs to the project, all else to its source."""

    project: str
    kind: str
    source_id: str
    key: str


@dataclass(slots=True)
class Change:
    """What one event sets in one item: registers that keep the last value, the first one, and other merges."""

    subject: Subject
    order: Order
    last: dict[str, Any]
    first: dict[str, Any]
    history: list[Any] | None = None
    link: list[str] | None = None
    uses: int = 0


RUN_STATUS: Final = {
    "run.started": "running",
    "run.completed": "completed",
    "run.failed": "failed",
    "run.cancelled": "cancelled",
    "run.resumed": "running",
}
OPERATION_STATUS: Final = {
    "approval.requested": "awaiting_approval",
    "approval.granted": "approved",
    "approval.rejected": "rejected",
    "approval.timed_out": "expired",
    **{f"{kind}.started": "dispatched" for kind in ("model", "tool", "mcp.call")},
    **{f"{kind}.completed": "succeeded" for kind in ("model", "tool", "mcp.call")},
    **{f"{kind}.failed": "failed" for kind in ("model", "tool", "mcp.call")},
    **{f"{kind}.blocked": "blocked" for kind in ("tool", "mcp.call")},
    "operation.reconciled": "reconciled",
}
APPROVAL_STATUS: Final = {
    "approval.requested": "requested",
    "approval.granted": "granted",
    "approval.rejected": "rejected",
    "approval.timed_out": "timed_out",
}
KNOWLEDGE_STATUS: Final = {
    "confirmed": "confirmed",
    "challenged": "challenged",
    "corrected": "corrected",
    "superseded": "superseded",
    "invalidated": "invalidated",
    "disproved": "invalidated",
}
KNOWLEDGE_ENDS: Final = frozenset({"corrected", "superseded", "invalidated", "disproved"})
KNOWLEDGE_OPINIONS: Final = KNOWLEDGE_STATUS.keys() - KNOWLEDGE_ENDS
UNPROPOSED: Final = "unproposed"  # known only by what refers to it: it waits for its proposal
STATUSES: Final = sorted(
    {*RUN_STATUS.values(), *OPERATION_STATUS.values(), *APPROVAL_STATUS.values(), *KNOWLEDGE_STATUS.values(),
     "uncertain", "proposed", UNPROPOSED, "unknown"}
)  # fmt: skip
RANKS: Final = ("requested", "granted", "rejected", "timed_out", "blocked", "started")  # then outcomes, then verdicts
PROBED: Final = "operation.probed"
FOLDED_TYPES: Final = frozenset({*RUN_STATUS, *OPERATION_STATUS, *APPROVAL_STATUS, PROBED, *KNOWLEDGE_TYPES})


class Step(NamedTuple):
    """A type of event taken apart: `mcp.call`, `failed`, and its rank among events without a sequence."""

    family: str
    name: str
    rank: int

    @classmethod
    def of(cls, event_type: str) -> Step:
        family, _, name = event_type.rpartition(".")
        return cls(family, name, RANKS.index(name) if name in RANKS else len(RANKS) + (name == "reconciled"))


STEPS: Final = {event_type: Step.of(event_type) for event_type in FOLDED_TYPES}
FAILURE_STATUS: Final = {"none": "failed", "occurred": "failed", "uncertain": "uncertain"}
SHOWN: Final = frozenset({
    "server", "tool", "provider", "model", "arguments_hash", "arguments_ref", "attempt", "policy_decision", "policy",
    "definition_digest", "result_ref", "output_ref", "error_class", "reason", "outcome",
})  # fmt: skip


def subject_of(project: str, source_id: str, run: str, event_type: str, subject_id: str) -> Subject | None:
    """The item that is incomplete while this event is not applied."""
    if subject_id:
        if event_type.startswith(KNOWLEDGE_PREFIX):
            return Subject(project, "knowledge", "", subject_id)
        return Subject(project, "operation", source_id, subject_id)
    return Subject(project, "run", source_id, run) if run else None


def changes_of(fact: Fact) -> list[Change]:
    """What this event changes; nothing for most types. May raise for data that the catalogue should have refused."""
    changes: list[Change] = []
    if fact.subject_id and (fact.type in OPERATION_STATUS or fact.type == PROBED):
        changes.append(_operation_change(fact))
        if fact.type in APPROVAL_STATUS:
            changes.append(_approval_change(fact))
    elif fact.type in RUN_STATUS and fact.run:
        changes.append(_run_change(fact))
    elif fact.type.startswith(KNOWLEDGE_PREFIX):
        changes.append(_knowledge_change(fact))
    return changes


def _order(fact: Fact) -> Order:
    """The place in the run. Without sequences: what must come first by its meaning, then the producer's clock."""
    return [fact.sequence or 0, STEPS[fact.type].rank, fact.occurred_at, fact.source_id, fact.event_id]


def _run_order(fact: Fact) -> Order:
    """By its meaning first: an end comes after every start, even if only one of the two has a sequence."""
    sequence, rank, *rest = _order(fact)
    return [rank, sequence, *rest]


def _shown(fact: Fact) -> dict[str, Any]:
    return {name: _short(value) for name, value in fact.data.items() if name in SHOWN and value is not None}


def _short(value: Any) -> Any:
    if type(value) is str:
        return value if len(value) <= VALUE_CHARS_MAX else value[:VALUE_CHARS_MAX]
    return value if isinstance(value, bool | int | float) else str(value)[:VALUE_CHARS_MAX]


def _run_change(fact: Fact) -> Change:
    subject = Subject(fact.project, "run", fact.source_id, fact.run)
    status = {"status": RUN_STATUS[fact.type], "reason": _short(fact.data.get("reason") or "")}
    first = {"started": fact.occurred_at} if fact.type == "run.started" else {}
    return Change(subject, _run_order(fact), {"status": status}, first)


def _operation_change(fact: Fact) -> Change:
    subject = Subject(fact.project, "operation", fact.source_id, fact.subject_id)
    change = Change(subject, _order(fact), {}, {"run": fact.run})
    family, step, _ = STEPS[fact.type]
    if step == "probed":
        change.last["probe"] = _shown(fact) | {"verdict": _short(fact.data.get("verdict") or "")}
        return change
    change.last["status"] = {"status": OPERATION_STATUS[fact.type], "effect": ""}
    if step == "started":
        change.last["call"] = {"kind": family} | _shown(fact)
        change.first["dispatched"] = fact.occurred_at
    elif step == "completed":
        change.last["status"]["effect"] = "occurred"
        change.last["result"] = _shown(fact)
    elif step == "failed":
        effect = str(fact.data.get("effect") or ("none" if family == "model" else "uncertain"))
        change.last["status"] = {"status": FAILURE_STATUS[effect], "effect": effect}
        change.last["result"] = _shown(fact)
    elif step == "reconciled":
        effect = fact.data["effect"]
        change.last["status"]["effect"] = effect
        note = _short(fact.data.get("note") or "")
        change.last["reconciliation"] = {"effect": effect, "note": note, "by": fact.actor_id}
    return change


def _approval_change(fact: Fact) -> Change:
    subject = Subject(fact.project, "approval", fact.source_id, fact.subject_id)
    status = APPROVAL_STATUS[fact.type]
    last = {"status": {"status": status, "by": fact.actor_id} | _shown(fact)}
    if status == "requested":
        last["request"] = {"by": fact.actor_id} | _shown(fact)
    return Change(subject, _order(fact), last, {"run": fact.run, "requested": fact.occurred_at})


def _knowledge_change(fact: Fact) -> Change:
    verb = fact.type.removeprefix(KNOWLEDGE_PREFIX)
    place: Order = [fact.occurred_at, fact.source_id, fact.event_id]
    change = Change(Subject(fact.project, "knowledge", "", fact.subject_id), place, {}, {})
    if verb == "used":
        change.uses, change.last["used"] = 1, fact.occurred_at
        return change
    if verb == "proposed":
        change.first["proposition"] = fact.data["proposition"]
    if verb in KNOWLEDGE_ENDS:
        change.first["ended"] = KNOWLEDGE_STATUS[verb]
    if verb == "linked":
        change.link = [fact.data["relation"], fact.data["target_id"], fact.source_id, fact.event_id]
    if verb == "promoted":
        change.last["promoted"] = {"scope_kind": fact.data["scope_kind"], "reason": _short(fact.data["reason"])}
    change.history = [place, verb, fact.parents[:CAUSES_MAX]]
    return change


def merge(registers: Registers, change: Change) -> None:
    """Let one change into an item. Associative and commutative; each event is merged once."""
    for name, value in change.last.items():
        held = registers.get(name)
        if held is None or held[0] < change.order:
            registers[name] = [change.order, value]
    for name, value in change.first.items():
        held = registers.get(name)
        if held is None or change.order < held[0]:
            registers[name] = [change.order, value]
    if change.uses:
        registers["uses"] = registers.get("uses", 0) + change.uses
    if change.history is not None:
        registers["changes"] = registers.get("changes", 0) + 1
        registers["history"] = _kept(registers, "history", change.history)[-HISTORY_MAX:]
        if change.history[1] in KNOWLEDGE_OPINIONS:
            registers["opinions"] = _kept(registers, "opinions", change.history)[-OPINIONS_MAX:]
    if change.link is not None:
        registers["links"] = _kept(registers, "links", change.link)[:LINKS_MAX]
    if "proposition" in change.first:
        mark = hashlib.sha256(change.first["proposition"].encode()).hexdigest()
        if mark not in registers.get("propositions", []):
            registers["propositions"] = _kept(registers, "propositions", mark)[:PROPOSITIONS_MAX]


def _kept(registers: Registers, name: str, value: Any) -> list[Any]:
    """The sorted list with one more. What a cut at either end keeps does not depend on the order of arrival."""
    kept: list[Any] = [*registers.get(name, []), value]
    return sorted(kept)


def status_of(kind: str, registers: Registers) -> str:
    """The item's state, from its registers alone."""
    if kind != "knowledge":
        held = registers.get("status")
        return str(held[1]["status"]) if held else "unknown"
    if "proposition" not in registers:
        return UNPROPOSED
    if "ended" in registers:
        return str(registers["ended"][1])
    known = [*registers.get("history", []), *registers.get("opinions", [])]
    opinions = [entry for entry in in_causal_order(known) if entry[1] in KNOWLEDGE_OPINIONS]
    return KNOWLEDGE_STATUS[opinions[-1][1]] if opinions else "proposed"


def in_causal_order(history: Iterable[list[Any]]) -> list[list[Any]]:
    """Causes before their effects, whatever the clocks said; otherwise by the clock, the source and the id."""
    entries = {(entry[0][1], entry[0][2]): entry for entry in history}
    waits = {
        key: {(key[0], parent) for parent in entry[2] if (key[0], parent) in entries and (key[0], parent) != key}
        for key, entry in entries.items()
    }
    ready = [(entry[0], key) for key, entry in entries.items() if not waits[key]]
    heapify(ready)
    ordered: list[list[Any]] = []
    children: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for key, parents in waits.items():
        for parent in parents:
            children.setdefault(parent, []).append(key)
    while ready:
        _, key = heappop(ready)
        ordered.append(entries[key])
        for child in children.get(key, []):
            waits[child].discard(key)
            if not waits[child]:
                heappush(ready, (entries[child][0], child))
    circle = sorted(entry for key, entry in entries.items() if waits[key])
    return ordered + circle


def fold(facts: Iterable[Fact]) -> dict[Subject, Registers]:
    """The items that these facts make, from nothing: for reading as of a time."""
    items: dict[Subject, Registers] = {}
    for fact in facts:
        for change in changes_of(fact):
            merge(items.setdefault(change.subject, {}), change)
    return items

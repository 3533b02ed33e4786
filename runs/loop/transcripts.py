"""The conversation of a run, put together from its operations: every call has exactly one result, after it (C10)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kernel_project.primitives.canonical import parse_json
from runs.boundary import artifacts
from runs.boundary.models.contracts import AssistantMessage, Message, ToolCall, ToolMessage, UserMessage
from runs.boundary.results import unpack
from runs.loop.compaction import Compacted, Turn, compact
from runs.models import Operation, Run, RunMessage

CUT_NOTE = (
    "Your last answer was cut off by the length limit. Nothing of it was executed. Answer again, more briefly, or with "
    "fewer calls at once."
)
EMPTY_NOTE = "Your last answer was empty. Say what you found, or call a tool."
EDITED_NOTE = "A person replaced the arguments of this call before anything was done. They are now: {arguments}\n"
EDITED_CHARS_MAX = 4_000  # of those arguments; the model knows most of them
LIMIT_NOTE = "A limit of this run was reached ({limit}). No tools are left: answer now with what you have."
TEXTS = {
    "denied": "Not executed: {message}",
    "blocked": "Not executed: {message}",
    "rejected": "Not executed: a person rejected this call. Their words, as data: {message}",
    "expired": "Not executed: nobody decided on this call before its deadline.",
    "withdrawn": "Not executed: {message}",
    "failed": "The call failed and had no effect ({error_class}): {message}",
    "uncertain": (
        "The outcome of this call is UNKNOWN: it was sent, and it may or may not have had its effect. Do not repeat "
        "it; it is being looked into."
    ),
    "occurred": "The effect of this call did occur; that was found out afterwards.",
    "none": "The effect of this call did not occur; that was found out afterwards.",
    "proposed": "Not executed yet.",
    "awaiting_approval": "Not executed yet: it waits for a person's decision.",
    "unknown": "It could not be found out whether this call had its effect. Do not repeat it without asking a person.",
}


WITHDRAWN = "the run was cancelled."

COLUMNS = (
    "run_id", "turn", "position", "kind", "state", "attempt", "verdict", "note", "usage", "arguments_digest",
    "result_digest", "error_class", "error_message", "edited_by", "tokens_charged", "cost_charged",
)  # fmt: skip


@dataclass(frozen=True)
class Heard:
    """A run's messages by the turn that reads them first, and the number of the last one."""

    by_turn: Mapping[int, tuple[str, ...]]
    last: int = 0


SILENCE = Heard({})


def heard(run: Run, turn: int, *, begun: bool) -> Heard:
    """The digests of the messages that the model knows in this turn. One that `begun` reads nothing new."""
    if not run.messages:
        return SILENCE
    by_turn: defaultdict[int, tuple[str, ...]] = defaultdict(tuple)
    last = 0
    for message in RunMessage.objects.filter(run=run).order_by("number"):
        if message.turn is None and begun:
            break
        place = turn if message.turn is None else message.turn
        by_turn[place] += (message.digest,)
        last = message.number
    return Heard(by_turn, last)


def unseen(run: Run) -> bool:
    """Whether a message waits for the run's next turn; the run's row must be locked."""
    return run.messages > 0 and RunMessage.objects.filter(run=run, turn__isnull=True).exists()


def messages(run: Run, before_turn: int, limit: str = "") -> list[Message]:
    """What the model is to read before `before_turn`: the input, then each turn's answer and results."""
    return told(run, rows(run, before_turn - 1), limit).messages


def rows(run: Run, last_turn: int, first_turn: int = 1) -> list[Operation]:
    """The run's operations of these turns, in the order of the conversation, with what it needs of them."""
    found = Operation.objects.filter(run=run, turn__gte=first_turn, turn__lte=last_turn)
    return list(found.only(*COLUMNS).order_by("turn", "position"))


def told(
    run: Run, rows: Sequence[Operation], limit: str = "", heard: Heard = SILENCE, bytes_max: int | None = None
) -> Compacted:
    """The same from the run's rows, with what was said to the run meanwhile, and made to fit."""
    digests = {row.result_digest for row in rows if row.result_digest}
    digests |= {row.arguments_digest for row in rows if row.edited_by}
    digests |= {digest for said in heard.by_turn.values() for digest in said}
    bodies = artifacts.read_many(run.id, {run.input_digest, *digests})
    turns = _composed(bodies[run.input_digest].decode(), rows, bodies, limit, heard)
    return compact(turns, bytes_max, rows[-1].turn if rows else None)


def compose(
    asked: str, rows: Sequence[Operation], bodies: Mapping[str, bytes], limit: str = "", heard: Heard = SILENCE
) -> list[Message]:
    """The same from rows that are at hand, in the order of turn and position; `bodies` by digest."""
    return compact(_composed(asked, rows, bodies, limit, heard), None).messages


def _composed(
    asked: str, rows: Sequence[Operation], bodies: Mapping[str, bytes], limit: str, heard: Heard
) -> list[Turn]:
    """The conversation by turns; what comes before the first and after the last one stands in turns of its own."""
    turns = [Turn(0, [UserMessage(text=asked)], {})]
    last = 0
    for operations in _turns(rows):
        last = operations[0].turn
        said = _said(heard.by_turn.get(last, ()), bodies)
        turns.append(Turn(last, [*said, *_turn(operations, bodies)], _refs(operations)))
    after: list[Message] = []
    for number in sorted(number for number in heard.by_turn if number > last):
        after += _said(heard.by_turn[number], bodies)
    if limit:
        after.append(UserMessage(text=LIMIT_NOTE.format(limit=limit)))
    return [*turns, Turn(last + 1, after, {})] if after else turns


def _refs(operations: Sequence[Operation]) -> dict[str, tuple[str, str]]:
    """Where the arguments and the result of each call are kept."""
    calls = [one for one in operations if one.position]
    return {str(one.id): (artifacts.ref(one.arguments_digest), _result_ref(one)) for one in calls}


def _result_ref(operation: Operation) -> str:
    return artifacts.ref(operation.result_digest) if operation.result_digest else ""


def _said(digests: Sequence[str], bodies: Mapping[str, bytes]) -> list[UserMessage]:
    return [UserMessage(text=bodies[digest].decode("utf-8", "replace")) for digest in digests]


def _turns(rows: Sequence[Operation]) -> Iterator[list[Operation]]:
    turn: list[Operation] = []
    for row in rows:
        if turn and row.turn != turn[0].turn:
            yield turn
            turn = []
        turn.append(row)
    if turn:
        yield turn


def _turn(operations: Sequence[Operation], bodies: Mapping[str, bytes]) -> list[Message]:
    model, *calls = operations
    if not model.result_digest:
        return []  # the model call failed: there was no answer
    answer = parse_json(bodies[model.result_digest])
    match model.usage.get("finish_reason"):
        case "length":
            return [AssistantMessage(text=answer["text"] or "…"), UserMessage(text=CUT_NOTE)]
        case _ if not answer["calls"] and not answer["text"].strip():
            return [UserMessage(text=EMPTY_NOTE)]
    named = [
        ToolCall(id=str(call.id), name=_label(answer["calls"], call), arguments=_raw(answer, call)) for call in calls
    ]
    told: list[Message] = [AssistantMessage(text=answer["text"], calls=tuple(named))]
    for call, name in zip(calls, named, strict=True):
        text, is_error = result_text(call, bodies.get(call.result_digest, b""))
        if call.edited_by:
            text = _edited(bodies.get(call.arguments_digest, b"")) + text
        told.append(ToolMessage(call_id=str(call.id), name=name.name, text=text, is_error=is_error))
    return told


def _label(calls: Sequence[dict[str, Any]], operation: Operation) -> str:
    return str(calls[operation.position - 1]["name"])


def _raw(answer: dict[str, Any], operation: Operation) -> str:
    return str(answer["calls"][operation.position - 1]["arguments"])


def _edited(arguments: bytes) -> str:
    """What the call was really about, where a person wrote other arguments than the model: data, and not its own."""
    given = arguments.decode("utf-8", "replace")
    rest = len(given) - EDITED_CHARS_MAX
    cut = f"{given[:EDITED_CHARS_MAX]}… ({rest} more characters)" if rest > 0 else given
    return EDITED_NOTE.format(arguments=cut)


def result_text(operation: Operation, body: bytes) -> tuple[str, bool]:
    """What the model is told of one call, and whether it is flagged as an error."""
    state = operation.state
    if state == "reconciled":
        sentence = TEXTS[operation.verdict]
        found = unpack(body)["text"] if body else ""
        return f"{sentence}\n{found}".strip(), operation.verdict != "occurred"
    if state in ("succeeded", "tool_error"):
        record = unpack(body)
        where = f"\n[the whole result is kept as {record['full']}]" if record.get("full") else ""
        return record["text"] + where, bool(record["is_error"])
    message = operation.error_message or operation.note or (WITHDRAWN if state == "withdrawn" else "")
    return TEXTS["uncertain" if state == "dispatched" else state].format(
        message=message, error_class=operation.error_class
    ), True

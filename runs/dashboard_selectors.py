"""Read what the operator's console shows. Every query is bounded; writes and locks nothing."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db.models import Q, QuerySet

from approvals.models import Approval
from kernel_project.primitives.canonical import parse_json
from kernel_project.primitives.clock import now
from kernel_project.primitives.errors import Invalid, NotFound
from outbox import selectors as outbox
from outbox.models import Event, ParkedEvent
from runs.boundary import artifacts
from runs.models import Artifact, Hold, Operation, Run

COUNTED_MAX = 1_000  # a queue is counted that far; beyond it "1 000 or more" is said
RECENT_RUNS = 1_000  # the runs that "lately" speaks of
CARD_ROWS = 6
STUCK_AFTER = timedelta(minutes=2)
OPERATIONS_PAGE = 60  # operations on one page of a run
EVENTS_PAGE = 100
EVENTS_OF_OPERATION_MAX = 200
TEXT_BYTES_MAX = 1024 * 1024  # a body above it is offered as a download instead
TWINS_MAX = 5
HOLDS_SHOWN_MAX = 5
STATE = Operation.State


@dataclass(frozen=True)
class Queue:
    """The head of a queue and how long it is, up to COUNTED_MAX."""

    total: int
    rows: Sequence[Any]

    @property
    def is_minimum(self) -> bool:
        return self.total >= COUNTED_MAX


@dataclass(frozen=True)
class RunCounts:
    """Live runs by state, all of them up to a limit, and how the latest RECENT_RUNS ended."""

    live: dict[str, int]
    ended: dict[str, int]
    recent: int

    @property
    def live_total(self) -> int:
        return sum(self.live.values())


def uncertain(limit: int = CARD_ROWS) -> Queue:
    """Operations whose outcome nobody knows, the oldest first."""
    waiting = Operation.objects.filter(state=STATE.UNCERTAIN).order_by("settled_at", "id")
    return Queue(_count(waiting), list(waiting.select_related("run__agent_version__agent")[:limit]))


def waiting_approvals(limit: int = CARD_ROWS) -> Queue:
    """Requests that wait for a person, the nearest deadline first."""
    waiting = Approval.objects.filter(state=Approval.State.WAITING).order_by("deadline_at", "id")
    return Queue(_count(waiting), list(waiting.defer("binding")[:limit]))


def uncertain_count() -> int:
    return _count(Operation.objects.filter(state=STATE.UNCERTAIN))


def waiting_count() -> int:
    return _count(Approval.objects.filter(state=Approval.State.WAITING))


def run_counts() -> RunCounts:
    """How many runs are in which state."""
    live = Run.objects.filter(state__in=Run.LIVE).order_by("state", "created_at")[: COUNTED_MAX * 10]
    recent = Run.objects.order_by("-id").values("state")[:RECENT_RUNS]
    ended = {state: count for state, count in _by_state(recent).items() if state in Run.ENDED}
    return RunCounts(_by_state(live.values("state")), ended, sum(_by_state(recent).values()))


def failing_runs(limit: int = CARD_ROWS) -> list[Run]:
    """Those of the latest RECENT_RUNS that failed, the newest first."""
    edge = list(Run.objects.order_by("-id").values_list("id", flat=True)[RECENT_RUNS - 1 : RECENT_RUNS])
    failed = Run.objects.filter(state=Run.State.FAILED, **({"id__gte": edge[0]} if edge else {}))
    return list(failed.select_related("agent_version__agent").order_by("-id")[:limit])


def waiting_runs(limit: int = CARD_ROWS) -> list[Run]:
    """Live runs that do not move, with what they wait for: the oldest of each state first."""
    candidates: list[Run] = []
    for state in Run.LIVE:
        live = Run.objects.filter(state=state).order_by("created_at").select_related("agent_version__agent")
        candidates += live[:COUNTED_MAX]
    still = [run for run in candidates if run.waiting_for or _unheard(run)]
    return sorted(still, key=lambda run: run.created_at)[:limit]


def _unheard(run: Run) -> bool:
    return run.wake_since is not None and now() - run.wake_since > STUCK_AFTER


def _by_state(rows: QuerySet[Any, Any]) -> dict[str, int]:
    counted: dict[str, int] = {}
    for state in rows.values_list("state", flat=True):
        counted[state] = counted.get(state, 0) + 1
    return counted


def _count(rows: QuerySet[Any]) -> int:
    return rows.order_by()[:COUNTED_MAX].count()


# One run -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Span:
    """A piece of a bar: from where to where, in percent of the picture's width."""

    what: str
    left: float
    width: float
    seconds: float
    label: str


@dataclass(frozen=True)
class Row:
    """One operation of a run in the picture."""

    operation: Operation
    approval: Approval | None
    spans: tuple[Span, ...]
    seconds: float | None

    @property
    def described(self) -> str:
        """The bar in words."""
        return "; ".join(f"{span.label} {span.seconds:.1f} s" for span in self.spans) or self.operation.state


@dataclass(frozen=True)
class Line:
    """One event of a run in the list, with what is known of its delivery."""

    event: Event
    name: str
    operation_state: str
    delivery: str
    seen: bool

    @property
    def state_word(self) -> str:
        return self.operation_state.replace("_", " ")

    @property
    def delivery_word(self) -> str:
        return self.delivery.replace("_", " ")


@dataclass(frozen=True)
class Timeline:
    """A page of a run: operations, drawn over the time that they cover, and events."""

    rows: Sequence[Row]
    lines: Sequence[Line]
    lag: outbox.StreamLag | None
    begin: datetime
    end: datetime
    earlier_operations: str = ""
    earlier_events: int = 0
    later_events: int = 0
    ticks: Sequence[tuple[float, float]] = field(default_factory=tuple)

    @property
    def seconds(self) -> float:
        return (self.end - self.begin).total_seconds()

    @property
    def page_before(self) -> int:
        """Where the page of earlier events begins: after this sequence."""
        return max(0, self.earlier_events - EVENTS_PAGE)

    @property
    def page_after(self) -> int:
        return self.lines[-1].event.sequence if self.lines else 0


def timeline(run: Run, before: tuple[int, int] | None = None, after_sequence: int | None = None) -> Timeline:
    """The latest operations and events of a run, or those before a place and after a sequence."""
    operations, more = _operations(run, before)
    begin, end = _bounds(run, operations, whole=not more and before is None)
    asked = {one.operation_id: one for one in _approvals(run, operations)}
    lag = outbox.stream_lag(run.id)
    first, lines = _lines(run, lag, after_sequence)
    head = lag.head if lag else 0
    return Timeline(
        rows=[_row(one, asked.get(one.id), begin, end) for one in operations],
        lines=lines,
        lag=lag,
        begin=begin,
        end=end,
        earlier_operations=f"{operations[0].turn}.{operations[0].position}" if more else "",
        earlier_events=max(0, first - 1),
        later_events=max(0, head - first - len(lines) + 1) if lines else 0,
        ticks=[(place, (end - begin).total_seconds() * place / 100) for place in (0, 25, 50, 75)],
    )


def _operations(run: Run, before: tuple[int, int] | None) -> tuple[list[Operation], bool]:
    rows = Operation.objects.filter(run=run).order_by("-turn", "-position")
    if before is not None:
        turn, position = before
        rows = rows.filter(turn__lte=turn).exclude(turn=turn, position__gte=position)
    found = list(rows[: OPERATIONS_PAGE + 1])
    return found[:OPERATIONS_PAGE][::-1], len(found) > OPERATIONS_PAGE


def _approvals(run: Run, operations: Iterable[Operation]) -> QuerySet[Approval]:
    """The requests of these calls, a call's latest one last."""
    asked = Approval.objects.filter(run_id=run.id, operation_id__in=[one.id for one in operations])
    return asked.defer("binding").order_by("requested_at")


def _bounds(run: Run, operations: Sequence[Operation], *, whole: bool) -> tuple[datetime, datetime]:
    """From when to when the picture reaches; never less than a millisecond, so that nothing is divided by zero."""
    begin = run.created_at if whole or not operations else operations[0].proposed_at
    ends = [_end(one) for one in operations]
    end = run.ended_at or now()
    if not whole and operations:
        end = max(ends)
    return begin, max([end, begin + timedelta(milliseconds=1), *(ends if run.ended_at else [])])


def _end(operation: Operation) -> datetime:
    known = [operation.reconciled_at, operation.settled_at, operation.dispatched_at, operation.proposed_at]
    return max(moment for moment in known if moment)


def _row(operation: Operation, approval: Approval | None, begin: datetime, end: datetime) -> Row:
    total = (end - begin).total_seconds()

    def span(what: str, since: datetime | None, until: datetime | None, label: str) -> list[Span]:
        if since is None:
            return []
        until = until or end
        left = min(100.0, max(0.0, (since - begin).total_seconds() / total * 100))
        seconds = max(0.0, (until - since).total_seconds())
        return [Span(what, round(left, 3), round(max(0.35, min(100 - left, seconds / total * 100)), 3), seconds, label)]

    spans = []
    if approval is not None:
        spans += span("ask", approval.requested_at, approval.decided_at, f"approval {approval.state}")
    if operation.first_dispatched_at:
        ended = operation.settled_at if operation.state != STATE.DISPATCHED else None
        spans += span(_look(operation), operation.first_dispatched_at, ended, operation.state)
    elif approval is None:
        spans += span("idle", operation.proposed_at, operation.settled_at, operation.state)
    if operation.state in (STATE.UNCERTAIN, STATE.RECONCILED) and operation.settled_at:
        spans += span("warn", operation.settled_at, operation.reconciled_at, "uncertain")
    return Row(operation, approval, tuple(spans), _seconds(operation))


def _look(operation: Operation) -> str:
    if operation.state == STATE.DISPATCHED:
        return "live"
    if operation.state in (STATE.FAILED, STATE.TOOL_ERROR):
        return "bad"
    return "model" if operation.kind == "model" else "good"


def _seconds(operation: Operation) -> float | None:
    if operation.first_dispatched_at is None or operation.settled_at is None:
        return None
    return (operation.settled_at - operation.first_dispatched_at).total_seconds()


def _lines(run: Run, lag: outbox.StreamLag | None, after: int | None) -> tuple[int, list[Line]]:
    head = lag.head if lag else 0
    start = max(0, head - EVENTS_PAGE) if after is None else max(0, after)
    events = Event.objects.filter(run_id=run.id, sequence__gt=start, sequence__lte=start + EVENTS_PAGE)
    rows = list(events.defer("envelope").order_by("sequence"))
    return start + 1, event_lines(run.id, rows, lag)


def event_lines(run_id: UUID, events: Sequence[Event], lag: outbox.StreamLag | None) -> list[Line]:
    """Events with their operations and what is known of their delivery: nothing is called seen before it was."""
    wanted = {event.operation_id for event in events if event.operation_id}
    operations = {
        one.id: one for one in Operation.objects.filter(run_id=run_id, id__in=wanted).only("id", "name", "state")
    }
    sequences = [event.sequence for event in events]
    parked = dict(
        ParkedEvent.objects.filter(run_id=run_id, sequence__in=sequences).values_list("sequence", "state")
    )  # fmt: skip
    lines = []
    for event in events:
        operation = operations.get(event.operation_id) if event.operation_id else None
        seen = lag is not None and lag.seen is not None and event.sequence <= lag.seen
        lines.append(
            Line(
                event,
                operation.name if operation else "",
                operation.state if operation else "",
                _delivery(event.sequence, parked, lag),
                seen,
            )
        )
    return lines


def _delivery(sequence: int, parked: dict[int, str], lag: outbox.StreamLag | None) -> str:
    if sequence in parked:
        return "acknowledged" if parked[sequence] == ParkedEvent.State.REPLAYED else parked[sequence]
    return "acknowledged" if lag is not None and sequence <= lag.published else "waiting"


# One operation -----------------------------------------------------------------------------------------------------


def events_of(operation: Operation) -> list[Line]:
    """Everything that was told about one operation."""
    events = Event.objects.filter(run_id=operation.run_id, operation_id=operation.id).order_by("sequence")
    return event_lines(
        operation.run_id,
        list(events.defer("envelope")[:EVENTS_OF_OPERATION_MAX]),
        outbox.stream_lag(operation.run_id),
    )


def twins_of(operation: Operation) -> list[Operation]:
    """The same write made elsewhere in the project and still unclear, and an earlier call for the same thing."""
    same = Operation.objects.filter(
        project_id=operation.project_id,
        name=operation.name,
        call_digest=operation.call_digest,
        state__in=(STATE.DISPATCHED, STATE.UNCERTAIN),
        effect="write",
    )
    unclear = same.exclude(call_digest="").exclude(id=operation.id)[:TWINS_MAX] if operation.call_digest else []
    earlier = Operation.objects.filter(id=operation.twin_id) if operation.twin_id else []
    return [*unclear, *earlier]


def holds_on(project: str, run_id: UUID, digest: str = "") -> list[Hold]:
    """What keeps this run from deletion, its operations and artifacts with it; with a digest, this artifact, too."""
    kept = Q(scope=Hold.Scope.PROJECT) | Q(run_id=run_id)
    if digest:
        kept |= Q(digest=digest)
    return list(Hold.objects.filter(kept, project=project, released_at__isnull=True).order_by("id")[:HOLDS_SHOWN_MAX])


@dataclass(frozen=True)
class Body:
    """A stored text for a page. `problem` says why there is none."""

    text: str = ""
    size: int = 0
    artifact_id: int | None = None
    problem: str = ""


def body(run_id: UUID, digest: str) -> Body:
    """The text behind a digest: JSON laid out, anything else as it is, too large or damaged bytes named."""
    if not digest:
        return Body()
    claim = Artifact.objects.filter(run_id=run_id, digest=digest).values_list("id", "size").first()
    if claim is None:
        return Body(problem="not kept")
    artifact_id, size = claim
    if size > TEXT_BYTES_MAX:
        return Body(size=size, artifact_id=artifact_id, problem=f"{size} bytes are too many for a page: download it")
    try:
        data = artifacts.read(run_id, digest)
    except NotFound:
        return Body(size=size, artifact_id=artifact_id, problem="the object store does not have it")
    except artifacts.Corrupt:
        return Body(size=size, artifact_id=artifact_id, problem="the stored bytes are damaged")
    return Body(text=laid_out(data), size=size, artifact_id=artifact_id)


def answer(run_id: UUID, digest: str) -> Body:
    """The text of a result as the model was told it, with what it says of itself; other bodies as they are."""
    found = body(run_id, digest)
    try:
        record = parse_json(found.text) if found.text else None
    except Invalid:
        return found
    if not isinstance(record, dict) or not isinstance(record.get("text"), str):
        return found
    more = {name: value for name, value in record.items() if name not in ("text", "bytes") and value}
    notes = f"\n\n— {_indent(more)}" if more else ""
    return Body(record["text"] + notes, found.size, found.artifact_id, found.problem)


def laid_out(data: bytes) -> str:
    """JSON with a line for each member; other bytes as text."""
    text = data.decode("utf-8", "backslashreplace")
    if text[:1] in "{[":
        try:
            return _indent(parse_json(data))
        except Invalid:
            return text
    return text


def _indent(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)

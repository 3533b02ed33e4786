"""Read runs, operations and what they are made of. Writes and locks nothing."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from django.db.models import Q, QuerySet, Sum
from django.db.models.fields.json import KeyTextTransform

from kernel_project.primitives.canonical import parse_json
from kernel_project.primitives.errors import Invalid, NotFound
from outbox.models import Event, ParkedEvent, Stream
from runs.boundary import artifacts
from runs.boundary.results import shorten
from runs.models import AgentVersion, Operation, Run, RunMessage, Tool

BODY_SHOWN_BYTES_MAX = 256 * 1024  # larger bodies are shown by reference only


def runs(
    project: str,
    *,
    state: str | None = None,
    agent: str | None = None,
    started_after: datetime | None = None,
    started_before: datetime | None = None,
    below: UUID | None = None,
) -> QuerySet[Run]:
    """The runs of a project, newest first; `below` is the id of the last one already seen.

    A start that Temporal has not acknowledged is no run yet and is left out.
    """
    wanted = Q(project_id=project) & ~Q(state=Run.State.STARTING)
    given: dict[str, Any] = {
        "state": state,
        "agent_version__agent__name": agent,
        "started_at__gte": started_after,
        "started_at__lt": started_before,
        "id__lt": below,
    }
    wanted &= Q(**{name: value for name, value in given.items() if value is not None})
    return _described(Run.objects.filter(wanted)).order_by("-id")


def run(project: str, run_id: UUID) -> Run:
    """One run. Raises NotFound for an absent or foreign one, and for a start that nobody acknowledged."""
    found = runs(project).filter(id=run_id).first()
    if found is None:
        raise NotFound("there is no such run")
    return found


def _described(found: QuerySet[Run]) -> QuerySet[Run]:
    """With agent and model, but without the whole definition: instructions can be long."""
    joined = found.select_related("agent_version__agent").defer("agent_version__definition")
    return joined.annotate(model=KeyTextTransform("model", "agent_version__definition"))


def last_answer(found: Run) -> tuple[str | None, bool]:
    """The text that a run has come to and whether it was cut; None while there is none, or its bytes are gone."""
    if not found.result_digest:
        return None, False
    answer = _read_json(found.id, found.result_digest)
    text = answer.get("text") if isinstance(answer, dict) else None
    return shorten(text.encode()) if isinstance(text, str) else (None, False)


def charged(run_id: UUID) -> tuple[int, Decimal]:
    """The tokens and the cost that count against a run's limits: of its model calls, and of its children."""
    calls = Operation.objects.filter(run_id=run_id)
    found = calls.aggregate(tokens=Sum("tokens_charged"), cost=Sum("cost_charged"))
    return found["tokens"] or 0, found["cost"] or Decimal(0)


@dataclass(frozen=True)
class Told:
    """A stretch of a run's journal, up to where its events are delivered, and which of them are parked."""

    events: list[Event]
    head: int
    published: int
    parked: frozenset[int]


def events(run_id: UUID, after: int, limit: int) -> Told:
    """The events of a run beyond a sequence, in order."""
    stream = Stream.objects.filter(run_id=run_id).first()
    found = list(Event.objects.filter(run_id=run_id, sequence__gt=after).order_by("sequence")[:limit])
    parked = ParkedEvent.objects.filter(run_id=run_id).exclude(state=ParkedEvent.State.REPLAYED)
    among = parked.filter(sequence__in=[event.sequence for event in found]).values_list("sequence", flat=True)
    return Told(found, stream.head if stream else 0, stream.published if stream else 0, frozenset(among))


def heads(run_ids: Collection[UUID]) -> dict[UUID, tuple[int, bool]]:
    """For each run: the sequence of its last event, and whether it has ended."""
    ended = set(Run.objects.filter(id__in=run_ids, state__in=Run.ENDED).values_list("id", flat=True))
    streams = Stream.objects.filter(run_id__in=run_ids).values_list("run_id", "head")
    return {run_id: (head, run_id in ended) for run_id, head in streams}


def ended_as(run_id: UUID) -> str:
    """The state in which a run has ended; empty while it has not."""
    return Run.objects.filter(id=run_id, state__in=Run.ENDED).values_list("state", flat=True).first() or ""


def operations(
    project: str, *, state: str | None = None, kind: str | None = None, below: tuple[UUID, int, int] | None = None
) -> QuerySet[Operation]:
    """The operations of a project, the newest run's last one first; `below` is the place of the last one seen."""
    found = Operation.objects.filter(project_id=project)
    if state is not None:
        found = found.filter(state=state)
    if kind is not None:
        found = found.filter(kind=kind)
    if below is not None:
        run_id, turn, position = below
        earlier = Q(run_id__lt=run_id) | Q(turn__lt=turn) | Q(turn=turn, position__lt=position)
        found = found.filter(earlier, run_id__lte=run_id)  # the plain bound is what the index can use
    return found.order_by("-run_id", "-turn", "-position")


def operations_of(run_id: UUID, after: tuple[int, int] | None = None) -> QuerySet[Operation]:
    """The operations of one run in their order; `after` is the place of the last one seen."""
    found = Operation.objects.filter(run_id=run_id)
    if after is not None:
        turn, position = after
        found = found.filter(Q(turn__gt=turn) | Q(turn=turn, position__gt=position))
    return found.order_by("turn", "position")


def children_of(run_id: UUID, after: UUID | None = None) -> QuerySet[Run]:
    """The runs that other agents do for a run, in the order of their starts; `after` is the last one seen."""
    found = Run.objects.filter(parent_id=run_id).exclude(state=Run.State.STARTING)
    return _described(found if after is None else found.filter(id__gt=after)).order_by("id")


def messages_of(run_id: UUID, after: int = 0) -> QuerySet[RunMessage]:
    """What was said to a run, in order; `after` is the number of the last message seen."""
    return RunMessage.objects.filter(run_id=run_id, number__gt=after).order_by("number")


def operation(project: str, operation_id: UUID) -> Operation:
    """One operation. Raises NotFound for an absent or foreign one."""
    found = Operation.objects.filter(project_id=project, id=operation_id).first()
    if found is None:
        raise NotFound("there is no such operation")
    return found


def bodies(found: Operation) -> dict[str, Any]:
    """Arguments and result of a call, as written down; None where a body is too large, gone or not there yet."""
    return {
        "arguments": _read_json(found.run_id, found.arguments_digest),
        "result": _read_json(found.run_id, found.result_digest) if found.result_digest else None,
    }


def _read_json(run_id: UUID, digest: str) -> Any:
    try:
        data = artifacts.read(run_id, digest)
        return parse_json(data) if len(data) <= BODY_SHOWN_BYTES_MAX else None
    except (NotFound, Invalid, artifacts.Corrupt):
        return None


def agents(project: str, after: str = "") -> QuerySet[AgentVersion]:
    """The newest version of each agent of a project, by name."""
    found = AgentVersion.objects.filter(agent__project_id=project, agent__name__gt=after).select_related("agent")
    return found.order_by("agent__name", "-version").distinct("agent__name")


def tools(project: str, after: str = "") -> QuerySet[Tool]:
    """The registered tools of a project, by name."""
    return Tool.objects.filter(project_id=project, name__gt=after).order_by("name")

"""The database side of one turn: begin the run, let the model call go, keep its answer, write down what it wants."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models.functions import Now

from kernel_project.primitives import ids
from kernel_project.primitives.canonical import canonical_json, parse_json, sha256_hex
from outbox import services as outbox
from outbox.contracts import NewEvent
from runs.boundary import artifacts, intents, operations, workspaces
from runs.boundary.contracts import Dispatch
from runs.boundary.intents import Wanted
from runs.boundary.journal import turn_frame
from runs.boundary.models.arguments import ArgumentsError, parse_arguments
from runs.boundary.models.contracts import ApiKeyReference, ModelAnswer, ModelRequest, ToolDefinition
from runs.boundary.models.errors import RETRYABLE, ModelError
from runs.boundary.operations import Unclear
from runs.loop import transcripts
from runs.loop.contracts import ThinkInput, Thought, Ticket
from runs.models import Artifact, Kind, Operation, Run, Tool

DELIVERIES_MAX = 20  # dispatches of one model call over crashes and retries; then the call has failed
STATE = Operation.State
REFUSALS = ("content_filter", "refusal")


@dataclass(frozen=True)
class Question:
    """A dispatched model call and what to ask."""

    given: Dispatch
    request: ModelRequest


def open_turn(asked: ThinkInput, heartbeat: Callable[..., None]) -> Question | Thought:
    """Commit the intent of a model call. A redelivery finds what is there and answers with it."""
    run = Run.objects.select_related("agent_version__agent", "project").get(id=asked.run_id)
    if run.cancel_requested_at is not None or run.state in Run.ENDED:
        return Thought(kind="stopped")
    operation_id = ids.operation_id(run.id, asked.turn, 0)
    described = artifacts.stage_json(_description(run, asked))
    with transaction.atomic():
        _begin_run(run)
        operation = _model_operation(run, asked, operation_id, described)
        if operation.state == STATE.SUCCEEDED:
            return thought_of(operation)
        if operation.state == STATE.FAILED and operation.attempt >= asked.attempt:
            return _failure(operation)
        step = operations.dispatch(operation_id, heartbeat)
        if isinstance(step, Unclear):  # an earlier delivery asked and was interrupted: asking again costs only tokens
            if operation.attempt >= DELIVERIES_MAX:
                operations.settle_failure(step.dispatch, "interrupted", "the model call never came to its end")
                return Thought(kind="failed", code="interrupted")
            step = operations.again(step, heartbeat)
        if not isinstance(step, Dispatch):
            return Thought(kind="stopped")
    return Question(step, _request(run, asked, step))


def _begin_run(run: Run) -> None:
    """The first turn proves that Temporal has the run: from here it is running, with its event."""
    if run.state == Run.State.STARTING:
        begin_run(run)


def begin_run(run: Run) -> bool:
    """Move a run from starting to running, once, inside the caller's transaction."""
    moved = Run.objects.filter(id=run.id, state=Run.State.STARTING).update(state=Run.State.RUNNING, started_at=Now())
    if moved == 1:
        run.state = Run.State.RUNNING
        version = run.agent_version
        data = {"status": "running", "agent": version.agent.name, "agent_version": version.version}
        outbox.append([run_event(run, "run.started", {**data, "input_ref": artifacts.ref(run.input_digest)})])
    workspaces.ensure(run)
    return moved == 1


def run_event(run: Run, event_type: str, data: dict[str, Any], subject: str = "") -> NewEvent:
    """An event of the run itself."""
    return NewEvent(
        run_id=run.id, project=run.project_id, type=event_type, subject=subject or str(run.id), data=data,
        frame_id=str(run.id),
    )  # fmt: skip


def _model_operation(run: Run, asked: ThinkInput, operation_id: UUID, described: artifacts.Staged) -> Operation:
    """The turn's model call, written with the events that end the last turn and begin this one."""
    known = Operation.objects.filter(id=operation_id).first()
    if known is not None:
        return known
    artifacts.claim(run.id, Artifact.Kind.ARGUMENTS, [described])
    operation = Operation.objects.create(
        id=operation_id,
        run=run,
        project_id=run.project_id,
        turn=asked.turn,
        position=0,
        kind=Kind.MODEL,
        name=run.agent_version.definition["model"][:255],
        definition_digest=run.agent_version.digest,
        arguments_digest=described.digest,
        actor=run.agent_version.agent.name,
        effect="read",
        policy="kernel: model calls",
        policy_answer="allow",
        state=STATE.PROPOSED,
    )
    outbox.append(_turn_events(run, asked.turn))
    Run.objects.filter(id=run.id).update(turn=asked.turn, waiting_for="")
    return operation


def _description(run: Run, asked: ThinkInput) -> dict[str, Any]:
    """What the model is asked, as a chain of hashes: the last turn's operations stand for all before them."""
    last = Operation.objects.filter(run=run, turn=asked.turn - 1).order_by("position")
    return {
        "agent": run.agent_version.digest,
        "input": run.input_digest,
        "previous": [[row.arguments_digest, row.state, row.result_digest] for row in last],
        "tools": asked.tools,
        "turn": asked.turn,
    }


def _turn_events(run: Run, turn: int) -> list[NewEvent]:
    events = [] if turn == 1 else [_turn_event(run, "turn.completed", turn - 1, "completed")]
    return [*events, _turn_event(run, "turn.started", turn, "running")]


def _turn_event(run: Run, event_type: str, turn: int, status: str) -> NewEvent:
    return NewEvent(
        run_id=run.id, project=run.project_id, type=event_type, subject=f"turn/{turn}",
        data={"turn": turn, "status": status}, frame_id=turn_frame(run.id, turn), parent_frame_id=str(run.id),
    )  # fmt: skip


def _request(run: Run, asked: ThinkInput, given: Dispatch) -> ModelRequest:
    definition = run.agent_version.definition
    key = definition["api_key_env"]
    return ModelRequest(
        model=definition["model"],
        base_url=definition["base_url"],
        api_key_ref=ApiKeyReference(from_env=key) if key else None,
        instructions=definition["instructions"],
        messages=tuple(transcripts.messages(run, asked.turn, asked.limit)),
        tools=tuple(_offered(run)) if asked.tools else (),
        max_output_tokens=definition["max_output_tokens"],
        temperature=definition["temperature"],
        timeout_seconds=definition["model_timeout_seconds"],
        request_id=given.idempotency_key,
        attempt=given.attempt,
        context={"workspace": given.workspace, "run_id": str(run.id)},
    )


def _offered(run: Run) -> list[ToolDefinition]:
    names = run.agent_version.definition["tools"]
    tools = Tool.objects.filter(project_id=run.project_id, name__in=names, enabled=True).order_by("exposed_name")
    return [
        ToolDefinition(name=tool.exposed_name, description=tool.description, input_schema=tool.input_schema)
        for tool in tools
    ]


def close_turn(asked: ThinkInput, question: Question, answer: ModelAnswer) -> Thought:
    """Keep the model's answer and write down what it wants, in one transaction."""
    run = Run.objects.select_related("agent_version__agent").get(id=asked.run_id)
    kept = artifacts.stage_json({"text": answer.text, "calls": [call.model_dump() for call in answer.calls]})
    usage = {**answer.usage.model_dump(), "finish_reason": answer.finish_reason, "answered_by": answer.model}
    facts = {"provider": answer.provider, "latency_ms": round(answer.seconds * 1000), "usage": usage}
    drafts = intents.draft(run, asked.turn, _wanted(asked, answer))
    with transaction.atomic():
        settled = operations.settle_model_answer(question.given, kept, facts)
        if settled.state != STATE.SUCCEEDED:
            return Thought(kind="stopped")
        if not Operation.objects.filter(run=run, turn=asked.turn, position__gte=1).exists():
            intents.propose(run, drafts)
    return thought_of(Operation.objects.get(id=question.given.operation_id))


def _wanted(asked: ThinkInput, answer: ModelAnswer) -> list[Wanted]:
    """The calls that may be made: none of an answer that was cut or refused, and no more than the run has left."""
    if answer.finish_reason not in ("tool_calls", "stop"):
        return []
    wanted = [_readable(call.name, call.arguments, call.id) for call in answer.calls]
    allowed = asked.calls_allowed if asked.tools else 0
    spent = [Wanted(one.name, {}, one.label, "this run's limit on calls is reached") for one in wanted[allowed:]]
    return wanted[:allowed] + spent


def _readable(name: str, raw: str, label: str) -> Wanted:
    arguments = parse_arguments(raw)
    if isinstance(arguments, ArgumentsError):
        return Wanted(name, {}, label, f"arguments not valid JSON: {arguments.reason}")
    return Wanted(name, arguments, label)


def fail_turn(question: Question, error: ModelError) -> Thought:
    """Keep that the model call failed."""
    operations.settle_failure(question.given, error.code, error.message)
    operation = Operation.objects.get(id=question.given.operation_id)
    failure = _failure(operation)
    return failure.model_copy(update={"retryable": error.retryable, "retry_after_seconds": error.retry_after_seconds})


def stop_turn(question: Question) -> None:
    """Keep that the model call was cancelled."""
    operations.settle_failure(question.given, "cancelled", "the run was cancelled during the model call")


def _failure(operation: Operation) -> Thought:
    return Thought(kind="failed", code=operation.error_class, retryable=operation.error_class in RETRYABLE)


def thought_of(operation: Operation) -> Thought:
    """What came of a settled model call, read from the rows: a redelivery gives the same answer."""
    reason = operation.usage.get("finish_reason")
    calls = list(
        Operation.objects.filter(run_id=operation.run_id, turn=operation.turn, position__gte=1)
        .select_related("tool")
        .order_by("position")
    )
    if reason == "length":
        return Thought(kind="cut", code="output_cut")
    if reason in REFUSALS:
        return Thought(kind="refused", code=str(reason))
    if calls:
        return Thought(kind="calls", tickets=tuple(ticket(call) for call in calls))
    answer = parse_json(artifacts.read(operation.run_id, operation.result_digest))
    if reason == "error":
        return Thought(kind="empty", code="bad_response")
    return Thought(kind="answer" if answer["text"].strip() else "empty")


def tickets(run_id: UUID, operation_ids: tuple[UUID, ...]) -> tuple[Ticket, ...]:
    """Where these calls stand now."""
    rows = Operation.objects.filter(run_id=run_id, id__in=operation_ids).select_related("tool")
    return tuple(ticket(row) for row in rows.order_by("turn", "position"))


def ticket(operation: Operation) -> Ticket:
    """One call, as the workflow needs to know it."""
    from approvals import selectors as approvals

    ready, deadline = operation.state in (STATE.PROPOSED, STATE.DISPATCHED), None
    if operation.state == STATE.AWAITING_APPROVAL:
        ready, deadline = approvals.standing(operation.id)
    if operation.state == STATE.RECONCILED:
        ready = operation.verdict == Operation.Verdict.NONE
    failed = canonical_json(
        [operation.name, operation.arguments_digest, operation.error_class, operation.error_message]
    )
    return Ticket(
        operation_id=operation.id,
        state=operation.state,
        ready=ready,
        deadline_at=deadline,
        timeout_seconds=float(operation.tool.timeout_seconds) if operation.tool else 60.0,
        fingerprint=sha256_hex(failed.encode())[:16],
        verdict=operation.verdict,
    )

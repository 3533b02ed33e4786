"""The database side of one turn: begin the run, let the model call go, keep its answer, write down what it wants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import IntegrityError, connection, transaction
from django.db.models import JSONField, OuterRef, Subquery
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import JSONObject, Now

from approvals import selectors as approvals
from kernel_project.primitives import ids, sql
from kernel_project.primitives.canonical import canonical_json, parse_json, sha256_hex
from outbox import services as outbox
from outbox.contracts import Actor, NewEvent
from runs.boundary import artifacts, compensation, intents, operations, secret_arguments, workspaces
from runs.boundary.contracts import NOTHING, Dispatch
from runs.boundary.intents import Wanted
from runs.boundary.journal import turn_frame
from runs.boundary.models.arguments import ArgumentsError, parse_arguments
from runs.boundary.models.contracts import ApiKeyReference, ModelAnswer, ModelRequest, ToolDefinition
from runs.boundary.models.errors import ModelError
from runs.boundary.operations import Unclear
from runs.contracts import Limits
from runs.loop import budget, queues, transcripts
from runs.loop.budget import Allowance, Price
from runs.loop.compaction import Compacted
from runs.loop.contracts import ThinkInput, Thought, Ticket
from runs.loop.transcripts import Heard
from runs.models import Kind, ModelPrice, News, Operation, Run, Tool

HERE = Path(__file__).parent.parent  # the app: its SQL is there
DELIVERIES_MAX = 20  # dispatches of one model call over crashes and retries; then the call has failed
CONTEXT_TOKENS_MAX = 150_000  # of a conversation, where the agent names none: it fits into what most models take
STATE = Operation.State
REFUSALS = ("content_filter", "refusal")
LOCAL_TIMEOUT_SECONDS_MAX = 10  # a longer call would hold the workflow's task


@dataclass(frozen=True)
class Question:
    """A dispatched model call of a run, what to ask, the tools that the answer may call, and what the model costs."""

    run: Run
    tools: Sequence[Tool]
    given: Dispatch
    request: ModelRequest
    price: Price | None = None


def open_turn(asked: ThinkInput, heartbeat: Callable[..., None]) -> Question | Thought:
    """Commit the intent of a model call. A redelivery finds what is there and answers with it."""
    run = _run_and_price(asked.run_id)
    if run is not None and asked.resumption not in (None, run.resumes):
        return Thought(kind="stopped")  # the run went on without this execution
    if run is not None and run.resuming_since is not None and confirm_resume(run.id, run.resumes):
        run = _run_and_price(asked.run_id)  # we are the proof that Temporal has it
    if run is None or run.cancel_requested_at is not None or run.state in Run.ENDED:
        return Thought(kind="stopped")  # no row: a start that nobody was told of, and that was forgotten meanwhile
    if asked.turn == 1:
        workspaces.ensure(run)
    if asked.woken:
        hear(run.id)
    if run.compensates_id is not None:
        return _undo(run, asked)
    rows = transcripts.rows(run, asked.turn)
    begun = any(row.turn == asked.turn for row in rows)
    if begun and (told := _told_before(asked)) is not None:
        return told
    before = [row for row in rows if row.turn < asked.turn]
    tools = intents.usable_tools(run)
    heard = transcripts.heard(run, asked.turn, begun=begun)
    told_now = transcripts.told(run, before, asked.limit, heard, _context_bytes_max(run))
    request, price = _request(run, asked, told_now, tools), price_of(run)
    limits = Limits.model_validate(run.agent_version.definition["limits"])
    allowed = budget.allowance(request, limits, price, budget.spent(rows), last=bool(asked.limit))
    if not isinstance(allowed, Allowance):
        return _no_room(asked, allowed, begun=begun)
    if begun:
        step = _go_on(asked, heartbeat, allowed)
    else:
        try:
            step = _begin_turn(run, asked, before, heartbeat, allowed, heard, told_now) or Thought(kind="stopped")
        except IntegrityError:  # another delivery of this turn was faster by a moment, with messages of its own
            return open_turn(asked, heartbeat)
    if not isinstance(step, Dispatch):
        return step
    own = {"request_id": step.idempotency_key, "attempt": step.attempt, "max_output_tokens": allowed.output_tokens}
    return Question(run, tools, step, request.model_copy(update=own), price)


def _run_and_price(run_id: UUID) -> Run | None:
    prices = ModelPrice.objects.filter(
        project_id=OuterRef("project_id"), model=KeyTextTransform("model", OuterRef("agent_version__definition"))
    )
    amounts = prices.values(found=JSONObject(input="input", output="output", cached_input="cached_input"))
    found = Run.objects.select_related("agent_version__agent").filter(id=run_id)
    return found.annotate(price=Subquery(amounts, output_field=JSONField())).first()


def price_of(run: Run) -> Price | None:
    """What the run's model costs now, as it was read with the run."""
    found = getattr(run, "price", None)
    if found is None:
        return None
    amounts = {name: Decimal(str(amount)) for name, amount in found.items() if amount is not None}
    return Price(**{"cached_input": amounts["input"]} | amounts)


def _no_room(asked: ThinkInput, named: budget.Named, *, begun: bool) -> Thought:
    """The call does not fit any more; one that was interrupted gets its end."""
    if begun and (left := operations.interrupted(ids.operation_id(asked.run_id, asked.turn, 0))) is not None:
        message = "the call was interrupted, and another attempt does not fit into the run's limits"
        operations.settle_failure(left.dispatch, "interrupted", message, usage={"asked_attempt": asked.attempt})
    if named == "price_unknown":
        return Thought(kind="failed", code=named)
    return Thought(kind="limit", code=named, begun=begun)


def _undo(run: Run, asked: ThinkInput) -> Thought:
    """A run that undoes an effect has no model: its input is its one call, and what became of that is its end."""
    call = compensation.call_of(run) or _take_up(run, asked)
    if call is None:
        return Thought(kind="stopped")
    if asked.turn == 1:
        return Thought(kind="calls", tickets=tickets_of([call]))
    if compensation.is_done(call):
        return Thought(kind="answer")
    return Thought(kind="not_undone", code=compensation.summary(call))


def _take_up(run: Run, asked: ThinkInput) -> Operation | None:
    """Write down the one call of a compensation; None if its run was asked to stop."""
    drafts = compensation.draft(run)
    begun = [_started(run)] if run.state == Run.State.STARTING else []
    try:
        with transaction.atomic():
            if not _take_turn(run.id, asked.turn):
                return None
            outbox.append([*begun, _turn_started(run, asked.turn)])
            intents.propose(run, drafts)
    except (IntegrityError, outbox.EventMismatch):  # another delivery of this turn was faster by a moment
        return compensation.call_of(run)
    return drafts[0].operation


def _go_on(asked: ThinkInput, heartbeat: Callable[..., None], allowed: Allowance) -> Dispatch | Thought:
    """A turn that was begun before: by an earlier delivery, or by a call that failed and is tried again."""
    operation_id = ids.operation_id(asked.run_id, asked.turn, 0)
    left = operations.interrupted(operation_id)
    if left is not None and left.dispatch.attempt >= DELIVERIES_MAX:
        return _give_up(asked, left)
    step = operations.dispatch(operation_id, heartbeat, reserved=allowed.charge)
    if isinstance(step, Unclear):  # an earlier delivery asked and was interrupted: asking again costs only tokens
        step = operations.again(step, heartbeat, reserved=allowed.charge)
    if isinstance(step, Dispatch):
        return step
    return _told_before(asked) or Thought(kind="stopped")  # another delivery may have answered meanwhile


def _told_before(asked: ThinkInput) -> Thought | None:
    """The answer that an earlier delivery left, if this attempt has one."""
    operation = Operation.objects.get(run_id=asked.run_id, turn=asked.turn, position=0)
    if operation.state == STATE.SUCCEEDED:
        return thought_of(operation)
    if operation.state == STATE.FAILED and operation.usage.get("asked_attempt", 0) >= asked.attempt:
        return _failure(operation)
    return None


def _give_up(asked: ThinkInput, step: Unclear) -> Thought:
    """Worker after worker was gone before this call came to its end."""
    message = "the model call never came to its end"
    operations.settle_failure(step.dispatch, "interrupted", message, usage={"asked_attempt": asked.attempt})
    return Thought(kind="failed", code="interrupted")


def _begin_turn(
    run: Run,
    asked: ThinkInput,
    before: Sequence[Operation],
    heartbeat: Callable[..., None],
    allowed: Allowance,
    heard: Heard,
    told: Compacted,
) -> Dispatch | None:
    """Write that the turn began and let its model call go; None if the run was asked to stop.

    The first turn proves that Temporal has the run: from here it is running. The run's row is locked first, here and
    everywhere (run, approval, operation, stream): a cancel that comes now waits.
    """
    described = artifacts.stage_json(_description(run, asked, before, heard, told))
    operation = _model_operation(run, asked, described)
    begun = [_started(run)] if run.state == Run.State.STARTING else []
    events = [*begun, *_turn_events(run, asked)]
    if told.is_new:
        events.append(_compacted(run, asked.turn, told))
    return operations.open_model_call(
        operation, described, heartbeat, *events, reserved=allowed.charge, heard=heard.last
    )


def _take_turn(run_id: UUID, turn: int) -> bool:
    """Lock the run for its next turn; false if it is not to go on."""
    with connection.cursor() as cursor:
        cursor.execute(
            sql.load(HERE, "begin_turn"), {"run_id": run_id, "turn": turn, "build_id": settings.KERNEL_BUILD_ID}
        )
        return int(cursor.rowcount) == 1


def begin_run(run: Run) -> None:
    """Temporal has the run: move it from starting, once, inside the caller's transaction."""
    starting = Run.objects.filter(id=run.id, state=Run.State.STARTING)
    going = starting.filter(cancel_requested_at__isnull=True).update(state=Run.State.RUNNING, started_at=Now())
    if going or starting.update(state=Run.State.CANCELLING, started_at=Now()):
        outbox.append([_started(run)])


def confirm_resume(run_id: UUID, resumption: int) -> bool:
    """Temporal has the run once more: it is running again, with its event. The workflow may have said so first.

    False if it was given up meanwhile.
    """
    with transaction.atomic():
        run = Run.objects.select_for_update(no_key=True).filter(id=run_id, resumes=resumption).first()
        if run is None:
            return False
        claimed = Run.objects.filter(id=run_id, state=Run.State.FAILED, resuming_since__isnull=False)
        if claimed.update(
            state=Run.State.RUNNING, resuming_since=None, ended_at=None, failure_code="", failure_message="",
            result_digest="", waiting_for="",
        ):  # fmt: skip
            data = {"status": "running", "reason": run.failure_code}
            by = Actor(id=run.resumed_by, type=run.resumed_by_type)  # type: ignore[arg-type]
            outbox.append([replace(run_event(run, "run.resumed", data), attempt=resumption, actor=by)])
            return True
        return run.state != Run.State.FAILED


def _started(run: Run) -> NewEvent:
    version = run.agent_version
    data = {"status": "running", "agent": version.agent.name, "agent_version": version.version}
    if run.compensates_id is not None:
        data |= {"compensates": str(run.compensates_id), "requested_by": run.started_by, **compensation.cause(run)}
    if run.parent_id is not None:
        data |= {"parent_run_id": str(run.parent_id), "parent_operation_id": str(run.parent_operation_id)}
    return run_event(run, "run.started", {**data, "input_ref": artifacts.ref(run.input_digest)})


def hear(run_id: UUID) -> None:
    """Take the run's news as read. What is not committed yet stays, and is told again."""
    News.objects.filter(run_id=run_id).delete()
    Run.objects.filter(id=run_id, wake_since__isnull=False).update(wake_since=None)


def run_event(run: Run, event_type: str, data: dict[str, Any], subject: str = "") -> NewEvent:
    """An event of the run itself."""
    return NewEvent(
        run_id=run.id, project=run.project_id, type=event_type, subject=subject or str(run.id), data=data,
        frame_id=str(run.id),
    )  # fmt: skip


def _model_operation(run: Run, asked: ThinkInput, described: artifacts.Staged) -> Operation:
    return Operation(
        id=ids.operation_id(run.id, asked.turn, 0),
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


def _compacted(run: Run, turn: int, told: Compacted) -> NewEvent:
    """From this turn on, results and arguments of the turns before are told as references."""
    data = {"turn": turn, "short_before_turn": told.before}
    return run_event(run, "context.compacted", data, f"{run.id}/context/{turn}")


def _description(
    run: Run, asked: ThinkInput, before: Sequence[Operation], heard: Heard, told: Compacted
) -> dict[str, Any]:
    """What the model is asked, as a chain of hashes: the last turn's operations stand for all before them."""
    last = [row for row in before if row.turn == asked.turn - 1]
    said = heard.by_turn.get(asked.turn, ())
    more = {"short_before_turn": told.before} if told.before else {}
    return (
        more
        | ({"messages": list(said)} if said else {})
        | {
            "agent": run.agent_version.digest,
            "input": run.input_digest,
            "previous": [[row.arguments_digest, row.state, row.result_digest] for row in last],
            "tools": asked.tools,
            "turn": asked.turn,
        }
    )


def _turn_events(run: Run, asked: ThinkInput) -> list[NewEvent]:
    """The end of the last turn, the limit that was reached in it, and the begin of this one."""
    events = [] if asked.turn == 1 else [_turn_event(run, "turn.completed", asked.turn - 1, "completed")]
    if asked.limit:
        events.append(limit_event(run, asked.limit))
    return [*events, _turn_started(run, asked.turn)]


def limit_event(run: Run, limit: str) -> NewEvent:
    """A limit was reached: told once, with the turn that is the last one, or with the end if that does not fit."""
    told = run_event(run, "policy.limit", {"status": "reached", "reason": limit}, f"{run.id}/limit")
    return replace(told, attempt=run.resumes + 1)  # another one may be reached after a resume


def _turn_started(run: Run, turn: int) -> NewEvent:
    """With the build that carries the run from here on, where this installation names its builds."""
    told = _turn_event(run, "turn.started", turn, "running")
    return replace(told, data={**told.data, "build_id": settings.KERNEL_BUILD_ID}) if settings.KERNEL_BUILD_ID else told


def _turn_event(run: Run, event_type: str, turn: int, status: str) -> NewEvent:
    return NewEvent(
        run_id=run.id, project=run.project_id, type=event_type, subject=f"turn/{turn}",
        data={"turn": turn, "status": status}, frame_id=turn_frame(run.id, turn), parent_frame_id=str(run.id),
    )  # fmt: skip


def _context_bytes_max(run: Run) -> int:
    """How long the conversation may be before older turns are told short."""
    tokens = run.agent_version.definition.get("context_tokens_max") or CONTEXT_TOKENS_MAX
    return int(tokens) * budget.BYTES_PER_TOKEN


def _request(run: Run, asked: ThinkInput, told: Compacted, tools: Sequence[Tool]) -> ModelRequest:
    """What the model is to be asked; the attempt's own number is put in when it is let go."""
    definition = run.agent_version.definition
    key = definition["api_key_env"]
    return ModelRequest(
        model=definition["model"],
        base_url=definition["base_url"],
        api_key_ref=ApiKeyReference(from_env=key) if key else None,
        instructions=definition["instructions"],
        messages=tuple(told.messages),
        tools=tuple(
            ToolDefinition(name=tool.exposed_name, description=tool.description, input_schema=tool.input_schema)
            for tool in (tools if asked.tools else ())
        ),
        max_output_tokens=definition["max_output_tokens"],
        temperature=definition["temperature"],
        timeout_seconds=definition["model_timeout_seconds"],
        request_id=str(ids.operation_id(run.id, asked.turn, 0)),
        context={"workspace": str(workspaces.path(run)), "run_id": str(run.id)},
    )


def close_turn(asked: ThinkInput, question: Question, answer: ModelAnswer) -> Thought:
    """Keep the model's answer and write down what it wants, in one transaction."""
    run = question.run
    answer = secret_arguments.without_secrets(answer, question.tools)
    kept = artifacts.stage_json({"text": answer.text, "calls": [call.model_dump() for call in answer.calls]})
    usage = {**answer.usage.model_dump(), "finish_reason": answer.finish_reason, "answered_by": answer.model}
    facts = {"provider": answer.provider, "latency_ms": round(answer.seconds * 1000), "usage": usage}
    wanted = _wanted(asked, answer)
    drafts = intents.draft(run, asked.turn, wanted, question.tools) if wanted else []
    with transaction.atomic():
        stopped = _is_stopped(run.id)
        spent = budget.settled(answer.usage, question.price)
        settled = operations.settle_model_answer(question.given, kept, facts, spent)
        stale = settled.state != STATE.SUCCEEDED
        if drafts and not stopped and not stale:
            intents.propose(run, drafts)
    if stopped or stale:
        return Thought(kind="stopped")
    return _thought(answer.finish_reason, [one.operation for one in drafts], answer.text)


def _is_stopped(run_id: UUID) -> bool:
    """Whether a cancel was committed; one that comes now waits for this transaction, and finds the new calls."""
    ((is_to_stop,),) = sql.rows(HERE, "hold_run", {"run_id": run_id})
    return bool(is_to_stop)


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


def fail_turn(asked: ThinkInput, question: Question, error: ModelError) -> Thought:
    """Keep that the model call failed, with all that a redelivery must say again."""
    kept = {
        "asked_attempt": asked.attempt,
        "retryable": error.retryable,
        "retry_after_seconds": error.retry_after_seconds,
    }
    spent = None if error.may_have_acted else NOTHING
    operations.settle_failure(question.given, error.code, error.message, usage=kept, spent=spent)
    return _failure(Operation.objects.get(id=question.given.operation_id))


def stop_turn(asked: ThinkInput, question: Question) -> None:
    """Keep that the model call was cancelled."""
    message = "the run was cancelled during the model call"
    operations.settle_failure(question.given, "cancelled", message, usage={"asked_attempt": asked.attempt})


def _failure(operation: Operation) -> Thought:
    if operation.error_class == "cancelled" or operation.state != STATE.FAILED:
        return Thought(kind="stopped")
    return Thought(
        kind="failed",
        code=operation.error_class,
        retryable=bool(operation.usage.get("retryable")),
        retry_after_seconds=operation.usage.get("retry_after_seconds"),
    )


def thought_of(operation: Operation) -> Thought:
    """What came of a settled model call, read from the rows: a redelivery gives the same answer."""
    calls = Operation.objects.filter(run_id=operation.run_id, turn=operation.turn, position__gte=1)
    answer = parse_json(artifacts.read(operation.run_id, operation.result_digest))
    reason = operation.usage.get("finish_reason")
    return _thought(reason, list(calls.select_related("tool").order_by("position")), answer["text"])


def _thought(reason: str | None, calls: Sequence[Operation], text: str) -> Thought:
    if reason == "length":
        return Thought(kind="cut", code="output_cut")
    if reason in REFUSALS:
        return Thought(kind="refused", code=str(reason))
    if calls:
        return Thought(kind="calls", tickets=tickets_of(calls))
    if reason == "error":
        return Thought(kind="empty", code="bad_response")
    return Thought(kind="answer" if text.strip() else "empty")


def tickets(run_id: UUID, operation_ids: Sequence[UUID]) -> tuple[Ticket, ...]:
    """Where these calls stand now."""
    rows = Operation.objects.filter(run_id=run_id, id__in=operation_ids).select_related("tool")
    return tickets_of(list(rows.order_by("turn", "position")))


def tickets_of(rows: Sequence[Operation]) -> tuple[Ticket, ...]:
    """These calls, as the workflow needs to know them; the tool of each must be loaded."""
    gated = [row.id for row in rows if row.state == STATE.AWAITING_APPROVAL]
    standing = approvals.standing(gated) if gated else {}
    at_work = _at_work(rows)
    return tuple(_ticket(row, *standing.get(row.id, (False, None)), at_work=row.id in at_work) for row in rows)


def _at_work(rows: Sequence[Operation]) -> set[UUID]:
    """Those of these calls that another agent is at work on."""
    out = [row.id for row in rows if row.kind == Kind.AGENT and row.state == STATE.DISPATCHED]
    children = Run.objects.filter(parent_operation_id__in=out, state__in=(Run.State.RUNNING, Run.State.CANCELLING))
    found = children.values_list("parent_operation_id", flat=True) if out else ()
    return {operation_id for operation_id in found if operation_id is not None}


def _ticket(operation: Operation, granted: bool, deadline: datetime | None, *, at_work: bool) -> Ticket:
    ready = granted or (operation.state in (STATE.PROPOSED, STATE.DISPATCHED) and not at_work)
    if operation.state == STATE.RECONCILED:
        ready = operation.verdict == Operation.Verdict.NONE
    tool = operation.tool
    return Ticket(
        operation_id=operation.id,
        state=operation.state,
        ready=ready,
        deadline_at=deadline,
        timeout_seconds=float(tool.timeout_seconds) if tool else 60.0,
        fingerprint=_fingerprint(operation) if operation.error_class else "",
        verdict=operation.verdict,
        local=tool is not None and is_local(tool),
        queue=queues.of_tool(operation.kind),
        delegated=operation.kind == Kind.AGENT,
    )


def is_local(tool: Tool) -> bool:
    """Whether a call is done beside the workflow: in-process, quick, and declared so. The row makes redelivery safe."""
    declared = tool.kind == Kind.PYTHON and tool.configuration.get("local") is True
    return declared and tool.timeout_seconds <= LOCAL_TIMEOUT_SECONDS_MAX


def _fingerprint(operation: Operation) -> str:
    """The same call that failed the same way has the same one, also where a key is written into its arguments."""
    call = operation.call_digest or operation.arguments_digest
    failed = canonical_json([operation.name, call, operation.error_class, operation.error_message])
    return sha256_hex(failed.encode())[:16]

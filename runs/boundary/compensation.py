"""Undo an effect by an operation of its own, with its own policy and approval. Never changes the one that it undoes.

A tool declares which other tool undoes it. A compensation is a run with that one call and no model, so that it waits
for approvals, is cancelled, crashes and is reconciled like any other call, and a failed one stays on record as failed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db.models import Exists, OuterRef
from pydantic import ValidationError

from kernel_project.primitives import ids, keyring
from kernel_project.primitives.canonical import canonical_bytes, parse_json, sha256_hex
from kernel_project.primitives.errors import Conflict, Invalid, NotFound
from runs.boundary import artifacts, intents, journal, results, secret_arguments
from runs.boundary.arguments import validate_arguments
from runs.boundary.compensation_declared import Compensation
from runs.boundary.declared import error_effect
from runs.boundary.intents import Draft, Wanted
from runs.boundary.placeholders import Missing, Values, filled
from runs.contracts import AgentDefinition
from runs.models import Agent, AgentVersion, Operation, Run, Tool

AGENT = "kernel/compensation"  # no project file can name an agent so; rules may, to judge compensations
MODEL = "kernel:compensation"  # shown in the place of a model: there is none
TURN, POSITION = 1, 1  # the place of its one call
SHOWN_MAX = 200  # compensations of one list
STATE, VERDICT = Operation.State, Operation.Verdict


@dataclass(frozen=True)
class Undoing:
    """One compensation as it would be made now."""

    original: Operation
    tool: Tool
    arguments: Mapping[str, Any]


class Compensated(Conflict):
    """A compensation of this operation stands: `run` names it."""

    code = "compensated"


def plan(operation_id: UUID, project: str) -> Undoing:
    """The call that would undo this operation.

    Raises NotFound for an absent or foreign operation; Conflict when there is no known effect to undo, or the tool
    declares no way that can be gone now; Invalid when the declared arguments cannot be made of call and result.
    """
    original = Operation.objects.select_related("run", "tool").filter(id=operation_id, project_id=project).first()
    if original is None:
        raise NotFound("there is no such operation")
    if why := not_undoable(original):
        raise Conflict(why, code="nothing_to_undo", state=original.state)
    declared = declaration(original.tool)
    if declared is None:
        raise Conflict(f"the tool {original.name} declares no way to undo it", code="no_compensation")
    tool = Tool.objects.select_related("server").filter(project_id=project, name=declared.tool, enabled=True).first()
    if tool is None:
        raise Conflict(f"the tool {declared.tool!r}, which undoes it, is not there or off", code="no_compensation")
    return Undoing(original, tool, _arguments(original, declared, tool))


def not_undoable(operation: Operation) -> str:
    """Why there is nothing to undo; empty when its effect is known to have happened."""
    if operation.effect != "write":
        return "it only reads: there is nothing to undo"
    if operation.state == STATE.UNCERTAIN:
        return "its effect is not known: find that out first"
    if operation.state == STATE.SUCCEEDED or operation.verdict == VERDICT.OCCURRED:
        return ""
    if operation.state == STATE.TOOL_ERROR and error_effect(operation) == "occurred":
        return ""
    return f"it is {operation.verdict or operation.state}: no effect of it is known"


def declaration(tool: Tool | None) -> Compensation | None:
    """What the tool, as registered now, declares; None for nothing. Raises Conflict for what cannot be read."""
    if tool is None or tool.compensation is None:
        return None
    try:
        return Compensation.model_validate(tool.compensation, extra="ignore")
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        raise Conflict(f"the compensation of {tool.name} cannot be read: {first['msg']}") from None


def _arguments(original: Operation, declared: Compensation, tool: Tool) -> Mapping[str, Any]:
    kept = parse_json(artifacts.read(original.run_id, original.arguments_digest))
    result = _result(original)

    def made(arguments: Mapping[str, Any]) -> dict[str, Any]:
        return dict(filled(declared.arguments, Values(str(original.id), arguments, result=result)))

    try:
        arguments = _with_secrets(original, tool, kept, made)
        checked = secret_arguments.as_checked(tool, arguments)
    except Missing as error:
        raise Invalid(f"the call that would undo it cannot be made: {error}") from None
    except (ValueError, keyring.Damaged) as error:
        raise Invalid(f"the call that would undo it cannot be made: a secret argument: {error}") from None
    if problems := validate_arguments(tool.input_schema, checked):
        raise Invalid(f"the call that would undo it does not fit {tool.name}: {problems[0]}")
    return arguments


def _with_secrets(
    original: Operation, tool: Tool, kept: Mapping[str, Any], made: Callable[[Mapping[str, Any]], dict[str, Any]]
) -> dict[str, Any]:
    """The arguments for the tool that undoes; a secret of the original goes on into arguments that are secret there.

    A word opens at its own place alone, so it is opened as the original's and sealed as this tool's.
    """
    if place := secret_arguments.open_place(tool, made(kept)):
        raise Invalid(
            f"the call that would undo it needs a secret argument of {original.name} in {place!r}: "
            f"declare that one in secret_arguments of {tool.name}, or leave it out of the compensation"
        )
    source = original.tool
    assert source is not None, "whoever declares a compensation is there"
    return secret_arguments.sealed(tool, made(secret_arguments.as_checked(source, kept)))


def _result(original: Operation) -> Any:
    """The structured result of the call, or its text if that is JSON; None if it is neither."""
    if not original.result_digest:
        return None
    record = results.unpack(artifacts.read(original.run_id, original.result_digest))
    if structured := record.get("structured"):
        return parse_json(artifacts.read(original.run_id, str(structured).removeprefix(artifacts.ref(""))))
    try:
        return parse_json(str(record["text"]).encode())
    except Invalid:
        return None


def agent_version(project: str) -> AgentVersion:
    """The agent in whose name compensations are made: made with the first of a project."""
    definition = AgentDefinition(model=MODEL, instructions="Undo the effect of one operation.").canonical()
    agent, _ = Agent.objects.get_or_create(project_id=project, name=AGENT)
    digest = sha256_hex(canonical_bytes(definition))
    version, _ = AgentVersion.objects.get_or_create(
        agent=agent, version=1, defaults={"definition": definition, "digest": digest, "created_by": "kernel"}
    )
    return version


def described(undoing: Undoing, note: str) -> artifacts.Staged:
    """The input of the run: the one call that it makes, and why."""
    return artifacts.stage_json(
        {
            "arguments": dict(undoing.arguments),
            "compensates": str(undoing.original.id),
            "note": note,
            "tool": undoing.tool.name,
        }
    )


def standing(operation_id: UUID) -> Run | None:
    """The compensation that forbids another one: under way, done, or of unknown effect. The caller holds the operation.

    Several can stand beside each other only if the earlier ones had no effect.
    """
    for run in Run.objects.filter(compensates_id=operation_id).order_by("-id"):
        call = call_of(run)
        if run.state in Run.LIVE or (call is not None and not provably_nothing(call)):
            return run
    return None


def of(operation_id: UUID) -> list[tuple[Run, Operation | None]]:
    """The compensations of an operation, the newest first, each with its one call once that is written."""
    return _with_calls(list(Run.objects.filter(compensates_id=operation_id).order_by("-id")[:SHOWN_MAX]))


def not_done(project: str = "") -> list[tuple[Run, Operation | None]]:
    """Compensations that have not undone their effect, the newest first: under way, waiting, failed or given up.

    One that failed is left out once another one has undone the same effect.
    """
    runs = Run.objects.filter(compensates_id__isnull=False).exclude(state=Run.State.COMPLETED)
    if project:
        runs = runs.filter(project_id=project)
    done = Run.objects.filter(compensates_id=OuterRef("compensates_id"), state=Run.State.COMPLETED)
    return _with_calls(list(runs.filter(~Exists(done)).order_by("-id")[:SHOWN_MAX]))


def _with_calls(runs: Sequence[Run]) -> list[tuple[Run, Operation | None]]:
    places = {run.id: ids.operation_id(run.id, TURN, POSITION) for run in runs}
    calls = Operation.objects.in_bulk(list(places.values()))
    return [(run, calls.get(places[run.id])) for run in runs]


def call_of(run: Run) -> Operation | None:
    """The one call of a compensation; None while its run has not begun."""
    found = Operation.objects.select_related("tool").filter(id=ids.operation_id(run.id, TURN, POSITION))
    return found.first()


def provably_nothing(call: Operation) -> bool:
    """Whether this call had no effect, so that another one may be made in its place."""
    if call.state == STATE.RECONCILED:
        return call.verdict == VERDICT.NONE
    if call.state == STATE.TOOL_ERROR:
        return error_effect(call) == "none"
    return call.state in (
        STATE.DENIED, STATE.REJECTED, STATE.EXPIRED, STATE.WITHDRAWN, STATE.BLOCKED, STATE.FAILED,
    )  # fmt: skip


def is_done(call: Operation) -> bool:
    """Whether the effect is undone."""
    return call.state == STATE.SUCCEEDED or call.verdict == VERDICT.OCCURRED


def draft(run: Run) -> list[Draft]:
    """Make the one call ready, as the run's input says; `intents.propose` writes it, with policy's answer.

    A tool that is gone meanwhile, or arguments that do not fit any more, give a blocked call.
    """
    asked = parse_json(artifacts.read(run.id, run.input_digest))
    tool = Tool.objects.select_related("server").filter(project_id=run.project_id, name=asked["tool"], enabled=True)
    usable = list(tool)
    name = usable[0].exposed_name if usable else asked["tool"]
    drafts = intents.draft(run, TURN, [Wanted(name, asked["arguments"])], usable)
    for one in drafts:
        one.operation.compensates_id = run.compensates_id
    return drafts


def cause(run: Run) -> dict[str, str]:
    """The event that told of the effect that is to be undone: of another run, so it is named beside the causes."""
    assert run.compensates_id is not None
    original = Operation.objects.filter(id=run.compensates_id).first()
    return {"compensates_event": str(journal.started_id(original))} if original is not None else {}


def summary(call: Operation | None) -> str:
    """Why a compensation did not undo anything, as the code that its run ends with."""
    if call is None:
        return "compensation_not_made"
    return f"compensation_{call.verdict or call.state}"

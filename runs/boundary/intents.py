"""Write down what a turn of the model wants, before anybody does it: one operation per call, with policy's answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from approvals import policy
from approvals import services as approvals
from approvals.contracts import Call, PolicyResult, Request
from kernel_project.primitives import ids
from kernel_project.primitives.canonical import NotCanonical, canonical_json, parse_json
from outbox import services as outbox
from runs.boundary import artifacts, journal
from runs.boundary.arguments import validate_arguments
from runs.models import Artifact, Kind, Operation, Run, Tool

STATE = Operation.State
CALL_LABEL_CHARS_MAX = 200  # of the provider's id, which is shown and never trusted
NAME_CHARS_MAX = 255
MESSAGE_CHARS_MAX = 1_000
PROBLEMS_SHOWN_MAX = 5
STATES = {"allow": STATE.PROPOSED, "deny": STATE.DENIED, "require": STATE.AWAITING_APPROVAL}


@dataclass(frozen=True)
class Wanted:
    """One call as the model asked for it; `problem` says why its arguments could not even be read."""

    name: str
    arguments: Mapping[str, Any]
    label: str = ""
    problem: str = ""


@dataclass(frozen=True)
class Draft:
    """A call made ready to be written: its arguments are staged, or it is already known to be unusable."""

    operation: Operation
    arguments: artifacts.Staged


def draft(run: Run, turn: int, calls: Sequence[Wanted]) -> list[Draft]:
    """Make the calls of one turn ready; positions follow the order of the answer. Writes no row."""
    names = run.agent_version.definition["tools"]
    usable = Tool.objects.filter(project_id=run.project_id, name__in=names, enabled=True)
    tools = {tool.exposed_name: tool for tool in usable} if calls else {}
    return [_draft(run, turn, place, call, tools.get(call.name)) for place, call in enumerate(calls, start=1)]


def propose(run: Run, drafts: Sequence[Draft]) -> None:
    """Write the operations of one turn, inside the transaction that settles the model's answer.

    A call that cannot be made (unknown tool, wrong arguments) is `blocked` with the reason; one that policy denies
    `denied`; one that needs a person `awaiting_approval`, together with its request.
    """
    answers = {one.operation.id: _ask_policy(one.operation) for one in drafts}
    artifacts.claim(run.id, Artifact.Kind.ARGUMENTS, [one.arguments for one in drafts])
    operations = Operation.objects.bulk_create([one.operation for one in drafts])
    refused = [one for one in operations if one.state in (STATE.BLOCKED, STATE.DENIED)]
    outbox.append([journal.blocked(operation) for operation in refused])
    for one in drafts:
        if one.operation.state == STATE.AWAITING_APPROVAL:
            approvals.request(_request(run, one, answers[one.operation.id]))


def _ask_policy(operation: Operation) -> PolicyResult | None:
    if operation.state == STATE.BLOCKED:
        return None
    answer = policy.decide(_question(operation))
    operation.policy, operation.policy_answer = answer.policy, answer.answer
    operation.state = STATES[answer.answer]
    if answer.answer == "deny":
        operation.error_class, operation.error_message = "denied", f"policy {answer.policy} denies this call"
    return answer


def _request(run: Run, one: Draft, answer: PolicyResult | None) -> Request:
    assert answer is not None
    operation = one.operation
    return Request(
        project=run.project_id,
        run_id=run.id,
        operation_id=operation.id,
        agent=run.agent_version.agent.name,
        tool=operation.name,
        effect=operation.effect,
        binding=binding(operation, one.arguments.data),
        arguments_hash=operation.arguments_digest,
        requested_by=run.started_by,
        policy=answer,
    )


def _draft(run: Run, turn: int, position: int, call: Wanted, tool: Tool | None) -> Draft:
    operation = Operation(
        id=ids.operation_id(run.id, turn, position),
        run=run,
        project_id=run.project_id,
        turn=turn,
        position=position,
        state=STATE.PROPOSED,
        actor=run.agent_version.agent.name,
        call_label=_printable(call.label, CALL_LABEL_CHARS_MAX),
    )
    if tool is None:
        return _unusable(operation, call, "unknown_tool", f"there is no tool {call.name!r} for this agent")
    _describe(operation, tool)
    if call.problem:
        return _unusable(operation, call, "invalid_arguments", call.problem)
    if problems := validate_arguments(tool.input_schema, dict(call.arguments)):
        text = "the arguments do not fit the tool's schema: " + "; ".join(problems[:PROBLEMS_SHOWN_MAX])
        return _unusable(operation, call, "invalid_arguments", text)
    try:
        arguments = artifacts.stage_json(_with_key(tool, call.arguments, operation.id))
    except NotCanonical as error:
        return _unusable(operation, call, "invalid_arguments", error.message)
    operation.arguments_digest = arguments.digest
    return Draft(operation, arguments)


def _describe(operation: Operation, tool: Tool) -> None:
    """Copy the declaration: what the row promised when written is what counts, whatever the registry says later."""
    operation.tool, operation.kind, operation.name = tool, tool.kind, tool.name
    operation.definition_digest = tool.definition_digest
    operation.effect = tool.effect
    operation.idempotent_for_seconds = tool.idempotent_for_seconds
    operation.probes = tool.probe is not None


def _unusable(operation: Operation, call: Wanted, error_class: str, message: str) -> Draft:
    """A call that never becomes one: it gets its row, so that the model gets its answer."""
    if operation.tool is None:
        operation.kind, operation.effect = Kind.PYTHON, "read"
        operation.name = _printable(call.name, NAME_CHARS_MAX) or "(no name)"
    arguments = artifacts.stage(b"{}", "application/json")
    operation.arguments_digest = arguments.digest
    operation.state = STATE.BLOCKED
    operation.error_class, operation.error_message = error_class, _printable(message, MESSAGE_CHARS_MAX)
    return Draft(operation, arguments)


def _with_key(tool: Tool, arguments: Mapping[str, Any], operation_id: UUID) -> dict[str, Any]:
    """The final arguments: where a server knows no keys, the operation's id is written into a declared argument."""
    final = dict(arguments)
    if tool.key_argument:
        value = str(final.get(tool.key_argument, ""))
        template = tool.key_template or "{value}\n\nOperation-Id: {operation_id}"
        final[tool.key_argument] = template.replace("{operation_id}", str(operation_id)).replace("{value}", value)
    return final


def _question(operation: Operation) -> Call:
    return Call(
        project=operation.project_id,
        agent=operation.actor,
        tool=operation.name,
        effect=operation.effect,  # type: ignore[arg-type]
        has_key=bool(operation.idempotent_for_seconds),
        has_probe=operation.probes,
    )


def binding(operation: Operation, arguments: bytes | None = None) -> str:
    """The canonical text of everything that a decision on this call covers."""
    if arguments is None:
        arguments = artifacts.read(operation.run_id, operation.arguments_digest)
    version = operation.run.agent_version
    return canonical_json(
        {
            "agent": version.agent.name,
            "agent_version": version.digest,
            "arguments": parse_json(arguments),
            "definition": operation.definition_digest,
            "effect": operation.effect,
            "operation": str(operation.id),
            "tool": operation.name,
        }
    )


def _printable(text: str, limit: int) -> str:
    """Hostile text, fit for a column: no NUL, no half surrogates, and not longer than it may be."""
    return text.replace("\x00", "\\u0000").encode("utf-8", "backslashreplace").decode()[:limit]

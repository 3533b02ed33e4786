"""Write down what a turn of the model wants, before anybody does it: one operation per call, with policy's answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from django.conf import settings

from approvals import policy
from approvals import services as approvals
from approvals.contracts import PolicyResult
from approvals.models import Policy
from kernel_project.primitives import ids, keyring
from kernel_project.primitives.canonical import NotCanonical, canonical_bytes, sha256_hex
from kernel_project.primitives.clock import now
from kernel_project.primitives.sql import rows
from outbox import services as outbox
from runs.boundary import artifacts, declared, delegates, journal, secret_arguments, twins, writing
from runs.boundary.arguments import validate_arguments
from runs.boundary.binding import binding as binding
from runs.boundary.binding import question, request
from runs.boundary.key_arguments import with_key
from runs.boundary.sandbox import drivers
from runs.models import Kind, Operation, Run, Tool

HERE = Path(__file__).parent.parent
STATE = Operation.State
CALL_LABEL_CHARS_MAX = 200  # of the provider's id, which is shown and never trusted
NAME_CHARS_MAX = 255
MESSAGE_CHARS_MAX = 1_000
PROBLEMS_SHOWN_MAX = 5
TWIN_ADVICE = "look at what became of it, and do not make this call again"
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
    on_twin: str = "refuse"


def usable_tools(run: Run) -> list[Tool]:
    """The agent's tools as they are registered now, each with its server; other agents, where runs may go deeper."""
    definition = run.agent_version.definition
    may_delegate = run.depth < settings.KERNEL_CHILD_DEPTH_MAX
    names = [*definition["tools"], *(delegates.tool_names(definition) if may_delegate else ())]
    if not names:
        return []
    enabled = Tool.objects.filter(project_id=run.project_id, name__in=names, enabled=True)
    return list(enabled.select_related("server").order_by("exposed_name"))


def draft(run: Run, turn: int, calls: Sequence[Wanted], usable: Iterable[Tool] | None = None) -> list[Draft]:
    """Make the calls of one turn ready; positions follow the order of the answer. Writes no row.

    `usable` are the agent's tools where the caller has them at hand.
    """
    tools = {tool.exposed_name: tool for tool in (usable_tools(run) if usable is None else usable)}
    return [_draft(run, turn, place, call, tools.get(call.name)) for place, call in enumerate(calls, start=1)]


def propose(run: Run, drafts: Sequence[Draft]) -> None:
    """Write the operations of one turn, inside the transaction that settles the model's answer.

    A call that cannot be made (unknown tool, wrong arguments, a twin) is `blocked` with the reason; one that policy
    denies `denied`; one that needs a person `awaiting_approval`, together with its request.
    """
    twins.lock_keys({one.operation.unique_key for one in drafts} - {""})
    for one in drafts:
        _find_twin(one.operation, drafts)
    rules = policy.in_force(run.project_id)
    answers = {one.operation.id: _ask_policy(one, rules) for one in drafts}
    operations = [one.operation for one in drafts]
    bodies, written = artifacts.claims(one.arguments for one in drafts), writing.as_json(operations)
    values = {"run_id": run.id, "bodies": bodies, "operations": written}
    rows(HERE, "propose", values, columns=writing.columns())
    refused = [one for one in operations if one.state in (STATE.BLOCKED, STATE.DENIED)]
    outbox.append([journal.blocked(operation) for operation in refused])
    for one in drafts:
        if (answer := answers[one.operation.id]) is not None and answer.answer == "require":
            approvals.request(request(one.operation, one.arguments.data, answer))


def _find_twin(operation: Operation, drafts: Sequence[Draft]) -> None:
    if not operation.unique_key:
        return
    before = [one.operation for one in drafts if one.operation.position < operation.position]
    same = [one.id for one in before if one.unique_key == operation.unique_key and one.state != STATE.BLOCKED]
    operation.twin_id = same[0] if same else twins.earlier(operation)


def _ask_policy(one: Draft, rules: Sequence[Policy]) -> PolicyResult | None:
    operation = one.operation
    if operation.state == STATE.BLOCKED:
        return None
    answer = policy.among(rules, question(operation, one.arguments.data))
    if operation.twin_id and answer.answer == "allow" and one.on_twin == "approve":
        answer = replace(answer, answer="require")
    operation.policy, operation.policy_answer = answer.policy, answer.answer
    operation.policy_id, operation.policy_version = answer.policy_id, answer.policy_version
    operation.state = STATES[answer.answer]
    if answer.answer == "deny":
        _refuse(operation, "denied", f"policy {answer.policy} denies this call")
    elif operation.twin_id and one.on_twin == "refuse":
        _refuse(operation, "twin", f"operation {operation.twin_id} was made for the same thing: {TWIN_ADVICE}")
        operation.state = STATE.BLOCKED
        return None
    return answer


def _refuse(operation: Operation, error_class: str, message: str) -> None:
    operation.error_class, operation.error_message = error_class, _printable(message, MESSAGE_CHARS_MAX)
    operation.settled_at = now()


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
    try:
        unique = twins.uniqueness(tool.configuration)
    except ValueError as error:
        return _unusable(operation, call, "bad_registration", str(error))
    if call.problem:
        return _unusable(operation, call, "invalid_arguments", call.problem)
    try:
        call = replace(call, arguments=secret_arguments.sealed(tool, call.arguments))
        checked = secret_arguments.as_checked(tool, call.arguments)
        alike = secret_arguments.comparable(tool, call.arguments)
    except (ValueError, keyring.KeyUnavailable) as error:
        return _unusable(operation, call, "bad_registration", str(error))
    if problems := validate_arguments(tool.input_schema, checked):
        text = "the arguments do not fit the tool's schema: " + "; ".join(problems[:PROBLEMS_SHOWN_MAX])
        return _unusable(operation, call, "invalid_arguments", text)
    try:
        operation.call_digest = sha256_hex(canonical_bytes(alike))
        operation.unique_key = twins.unique_key(tool.name, unique.unique_by, alike)
        arguments = artifacts.stage_json(with_key(tool, call.arguments, operation.id))
    except NotCanonical as error:
        operation.call_digest = operation.unique_key = ""
        return _unusable(operation, call, "invalid_arguments", error.message)
    operation.arguments_digest = arguments.digest
    return Draft(operation, arguments, unique.on_twin)


def _describe(operation: Operation, tool: Tool) -> None:
    """Copy the declaration: what the row promised when written is what counts, whatever the registry says later."""
    operation.tool, operation.kind, operation.name = tool, tool.kind, tool.name
    operation.definition_digest = tool.definition_digest
    operation.effect = tool.effect
    operation.declared = declared.promised(tool)
    operation.idempotent_for_seconds = tool.idempotent_for_seconds
    operation.probes = tool.probe is not None or (tool.kind == Kind.SANDBOX and drivers.chosen().leaves_evidence)


def _unusable(operation: Operation, call: Wanted, error_class: str, message: str) -> Draft:
    """A call that never becomes one: it gets its row, so that the model gets its answer."""
    if operation.tool is None:
        operation.kind, operation.effect = Kind.PYTHON, "read"
        operation.name = _printable(call.name, NAME_CHARS_MAX) or "(no name)"
    arguments = artifacts.stage(b"{}", "application/json")
    operation.arguments_digest = arguments.digest
    operation.state = STATE.BLOCKED
    _refuse(operation, error_class, message)
    return Draft(operation, arguments)


def _printable(text: str, limit: int) -> str:
    """Hostile text, fit for a column: no NUL, no half surrogates, and not longer than it may be."""
    return text.replace("\x00", "\\u0000").encode("utf-8", "backslashreplace").decode()[:limit]

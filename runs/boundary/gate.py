"""Whether a call may leave now: asked at each dispatch, because rules, tools and servers change. Writes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from approvals import policy
from approvals import selectors as approvals
from approvals.contracts import Grant, PolicyResult, Request
from kernel_project.primitives import keyring
from kernel_project.primitives.canonical import parse_json
from outbox.contracts import KERNEL
from runs.boundary import binding, secret_arguments
from runs.boundary.arguments import validate_arguments
from runs.models import Kind, Operation

STATE = Operation.State
ATTEMPTS_MAX = 4  # dispatches of one operation, counting the first, that the kernel makes on its own account


@dataclass(frozen=True)
class Stop:
    """It must not leave: where its row goes, and why."""

    state: Operation.State
    error_class: str
    message: str


@dataclass(frozen=True)
class Ask:
    """A person must be asked first; an earlier yes covers another call than this one."""

    request: Request
    answer: PolicyResult


@dataclass(frozen=True)
class Wait:
    """Nothing to do here now: a person has not decided, or the operation is past this."""


@dataclass(frozen=True)
class Go:
    """It may leave, by the yes to this request if a person was asked: the dispatch holds it to that."""

    approval_id: UUID | None = None


def check(operation: Operation, arguments: bytes) -> Go | Stop | Ask | Wait:
    """What is to be done with an operation that somebody wants dispatched; `arguments` are its stored bytes."""
    if operation.kind == Kind.MODEL:
        return Go() if operation.state in (STATE.PROPOSED, STATE.FAILED) else Wait()
    if not _may_start(operation):
        return Wait()
    grant = None if operation.state == STATE.PROPOSED else approvals.grant(operation.id)
    if operation.state == STATE.AWAITING_APPROVAL and grant is None:
        return Wait()  # nobody has said yes: the request, and with it the operation, ends by itself
    if stopped := _spent(operation):
        return stopped
    return _judged(operation, arguments, grant)


def check_again(operation: Operation, arguments: bytes) -> Go | Stop:
    """Whether another attempt may follow one that is out: all that a first dispatch asks, but no person any more."""
    if operation.kind == Kind.MODEL:
        return Go()
    judged = _judged(operation, arguments, approvals.grant(operation.id))
    assert not isinstance(judged, Ask), "nobody is asked about a call that has left"
    return judged


def _judged(operation: Operation, arguments: bytes, grant: Grant | None) -> Go | Stop | Ask:
    if stopped := _switched_off(operation):
        return stopped
    answer = policy.decide(binding.question(operation, arguments))
    if answer.answer == "deny":
        return Stop(STATE.DENIED, "denied", f"policy {answer.policy} denies this call")
    return _consent(operation, arguments, answer, grant)


def _may_start(operation: Operation) -> bool:
    if operation.state == STATE.RECONCILED:
        return operation.verdict == Operation.Verdict.NONE
    return operation.state in (STATE.PROPOSED, STATE.AWAITING_APPROVAL)


def _spent(operation: Operation) -> Stop | None:
    """The kernel's own verdicts let a call go again only so often; a named person may let it go once more."""
    if operation.attempt < ATTEMPTS_MAX or operation.reconciled_by != KERNEL.id:
        return None
    return Stop(STATE.BLOCKED, "attempts_spent", f"it was tried {operation.attempt} times and had no effect")


def _switched_off(operation: Operation) -> Stop | None:
    tool = operation.tool
    assert tool is not None
    if tool.enabled and (tool.server is None or tool.server.enabled):
        return None
    return Stop(STATE.BLOCKED, "tool_disabled", "this tool was switched off")


def _consent(operation: Operation, arguments: bytes, answer: PolicyResult, grant: Grant | None) -> Go | Stop | Ask:
    """Policy allows it, or a person said yes to exactly this."""
    assert operation.tool is not None
    if operation.state == STATE.PROPOSED or operation.policy_answer == "allow":
        if answer.answer == "require":
            return _ask(operation, arguments, answer)
        if operation.definition_digest != operation.tool.definition_digest:
            return Stop(STATE.BLOCKED, "definition_changed", "the tool was registered anew since this call was made")
        return Go(grant.approval_id if grant else None)
    if grant and grant.binding == binding.binding(operation, arguments) and _same_rule(grant, answer):
        return Go(grant.approval_id)
    return _ask(operation, arguments, answer)


def _same_rule(grant: Grant, answer: PolicyResult) -> bool:
    """A rule that only became milder does not take back what was granted under a stricter one."""
    return answer.answer == "allow" or grant.policy_id == answer.policy_id


def _ask(operation: Operation, arguments: bytes, answer: PolicyResult) -> Stop | Ask:
    assert operation.tool is not None
    if operation.state in (STATE.RECONCILED, STATE.DISPATCHED):
        return Stop(STATE.BLOCKED, "approval_mismatch", "no yes covers the call as it is by now")
    try:
        checked = secret_arguments.as_checked(operation.tool, parse_json(arguments))
    except (ValueError, keyring.KeyUnavailable, keyring.Damaged) as error:
        return Stop(STATE.BLOCKED, "bad_registration", str(error))
    if problems := validate_arguments(operation.tool.input_schema, checked):
        return Stop(STATE.BLOCKED, "invalid_arguments", f"the tool was registered anew: {problems[0]}")
    return Ask(binding.request(operation, arguments, answer), answer)

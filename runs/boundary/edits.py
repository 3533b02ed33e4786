"""What approvals ask of the boundary: other arguments for a call that waits for a person, and how calls were judged."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from uuid import UUID

from approvals import calls, policy
from approvals.contracts import PolicyResult, Request
from approvals.models import Approval
from kernel_project.primitives import keyring
from kernel_project.primitives.canonical import canonical_bytes, parse_json, sha256_hex
from kernel_project.primitives.errors import Conflict, Invalid, NotFound
from runs.boundary import artifacts, secret_arguments, twins
from runs.boundary.arguments import validate_arguments
from runs.boundary.binding import question, request
from runs.boundary.key_arguments import with_key, without_key
from runs.models import Artifact, Operation, Tool

STATE = Operation.State
PROBLEMS_SHOWN_MAX = 5
PAST_BATCH = 200  # calls whose arguments are read at once


@dataclass(frozen=True)
class _Edit:
    """Arguments that fit the tool, staged, with what follows from them."""

    staged: artifacts.Staged
    call_digest: str
    unique_key: str
    on_twin: str
    by: str


class BoundaryCalls:
    """The calls of runs, as approvals may deal with them."""

    def edited(self, approval: Approval, arguments: Any, by: str) -> calls.Rewrite:
        operation = _operation(approval)
        tool = operation.tool
        if tool is None or not tool.enabled:
            raise Conflict("the tool of this call is switched off")
        edit = _checked(operation, tool, arguments, by)
        if edit.staged.digest == operation.arguments_digest:
            raise Invalid("these are the arguments that were asked about: change something, or approve or reject them")
        return partial(_rewrite, edit)

    def arguments(self, approval: Approval) -> Any:
        given = parse_json(approval.binding)["arguments"]
        operation = _operation(approval)
        return without_key(operation.tool, given, operation.id) if operation.tool else given

    def past(self, project: str, limit: int) -> Iterator[calls.PastCall]:
        judged = Operation.objects.filter(project_id=project, position__gte=1).exclude(policy_answer="")
        newest = judged.order_by("-run_id", "-turn", "-position")
        for start in range(0, limit, PAST_BATCH):
            batch = list(newest[start : min(start + PAST_BATCH, limit)])
            yield from _past(batch)
            if len(batch) < PAST_BATCH:
                return


def _operation(approval: Approval) -> Operation:
    rows = Operation.objects.select_related("run__agent_version__agent", "tool__server")
    return rows.get(id=approval.operation_id)


def _checked(operation: Operation, tool: Tool, arguments: Any, by: str) -> _Edit:
    if not isinstance(arguments, dict):
        raise Invalid("the arguments of a call are a JSON object")
    try:
        plain = secret_arguments.sealed(tool, without_key(tool, arguments, operation.id))
        checked = secret_arguments.as_checked(tool, plain)
        alike = secret_arguments.comparable(tool, plain)
    except (ValueError, keyring.KeyUnavailable) as error:
        raise Conflict(str(error)) from None
    if problems := validate_arguments(tool.input_schema, checked):
        raise Invalid("the arguments do not fit the tool's schema: " + "; ".join(problems[:PROBLEMS_SHOWN_MAX]))
    try:
        unique = twins.uniqueness(tool.configuration)
    except ValueError as error:
        raise Conflict(str(error)) from None
    return _Edit(
        staged=artifacts.stage_json(with_key(tool, plain, operation.id)),
        call_digest=sha256_hex(canonical_bytes(alike)),
        unique_key=twins.unique_key(tool.name, unique.unique_by, alike),
        on_twin=unique.on_twin,
        by=by,
    )


def _rewrite(edit: _Edit, approval: Approval) -> Request:
    """Change the call, inside the transaction that supersedes its request; the request's row is locked."""
    operation = _operation(approval)
    before = operation.arguments_digest
    operation.arguments_digest, operation.call_digest = edit.staged.digest, edit.call_digest
    operation.unique_key, operation.twin_id = edit.unique_key, None
    if edit.unique_key:
        twins.lock_keys({edit.unique_key})
        operation.twin_id = twins.earlier(operation)
    if operation.twin_id and edit.on_twin == "refuse":
        raise Conflict(f"operation {operation.twin_id} was made for the same thing", code="twin")
    answer = _judged(operation, edit.staged.data, approval)
    artifacts.claim(operation.run_id, Artifact.Kind.ARGUMENTS, [edit.staged])
    changed = Operation.objects.filter(
        id=operation.id, state=STATE.AWAITING_APPROVAL, attempt=0, arguments_digest=before
    ).update(
        arguments_digest=operation.arguments_digest, call_digest=operation.call_digest,
        unique_key=operation.unique_key, twin_id=operation.twin_id, edited_by=edit.by,
        policy=answer.policy, policy_id=answer.policy_id, policy_version=answer.policy_version,
    )  # fmt: skip
    if changed != 1:
        raise Conflict("the call does not wait for a person any more")
    return request(operation, edit.staged.data, answer)


def _judged(operation: Operation, arguments: bytes, approval: Approval) -> PolicyResult:
    """Who is to be asked about the new arguments; where policy would ask nobody, those who were asked before."""
    answer = policy.decide(question(operation, arguments))
    if answer.answer == "deny":
        raise Conflict(f"policy {answer.policy} denies this call with these arguments", code="denied")
    if answer.answer == "require":
        return _passed_on(answer, approval)
    given = approval.deadline_at - approval.requested_at
    return replace(
        answer,
        answer="require",
        policy=approval.policy_name,
        policy_id=approval.policy_id,
        policy_version=approval.policy.version if approval.policy else None,
        group=approval.group,
        quorum=approval.quorum,
        deadline_seconds=max(1, round(given.total_seconds())),
        on_expiry=approval.on_expiry,  # type: ignore[arg-type]
        escalate_to=approval.escalate_to,
        four_eyes=approval.four_eyes,
        break_glass=approval.break_glass,
    )


def _passed_on(answer: PolicyResult, approval: Approval) -> PolicyResult:
    """The same, without going back to a group that let the time of this call run out: the next one stays asked."""
    silent = (
        Approval.objects.filter(operation_id=approval.operation_id, state=Approval.State.ESCALATED)
        .order_by("-requested_at", "-id")
        .first()
    )
    if silent is None or answer.group != silent.group:
        return answer
    return replace(answer, group=silent.escalate_to, on_expiry="reject", escalate_to="")


def _past(batch: list[Operation]) -> Iterator[calls.PastCall]:
    digests: defaultdict[UUID, set[str]] = defaultdict(set)
    for operation in batch:
        digests[operation.run_id].add(operation.arguments_digest)
    bodies = {run_id: _bodies(run_id, wanted) for run_id, wanted in digests.items()}
    for operation in batch:
        if (arguments := bodies[operation.run_id].get(operation.arguments_digest)) is not None:
            yield calls.PastCall(
                operation_id=operation.id,
                at=operation.proposed_at,
                call=question(operation, arguments),
                answer=operation.policy_answer,  # type: ignore[arg-type]
                policy=operation.policy,
            )


def _bodies(run_id: UUID, digests: set[str]) -> dict[str, bytes]:
    """The arguments of a run's calls; none of them where some were purged since."""
    try:
        return artifacts.read_many(run_id, digests)
    except NotFound:
        return {}


calls.owned_by(BoundaryCalls())

"""Read approvals. Writes and locks nothing."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from django.db.models import Exists, OuterRef, Q, QuerySet
from django.db.models.functions import Lower, Now

from approvals import people
from approvals.contracts import Decider, Grant
from approvals.models import Approval, Decision, Expiry
from kernel_project.primitives.canonical import sha256_hex
from kernel_project.primitives.errors import NotFound


def grant(operation_id: UUID) -> Grant | None:
    """What a person said yes to, or None when there is no yes."""
    granted = Approval.objects.filter(operation_id=operation_id, state=Approval.State.GRANTED)
    found = granted.values_list("id", "binding", "binding_hash", "policy_id").first()
    if found is None:
        return None
    approval_id, text, digest, policy_id = found
    intact = sha256_hex(text.encode()) == digest
    return Grant(approval_id, text if intact else "", policy_id)  # a text that was tampered with covers nothing


def standing(operation_ids: Sequence[UUID]) -> dict[UUID, tuple[bool, datetime | None]]:
    """By operation: whether a yes is there, and until when one may come while it is not."""
    asked = Approval.objects.filter(operation_id__in=operation_ids).exclude(state__in=Approval.REPLACED)
    rows = asked.values_list("operation_id", "state", "deadline_at")
    return {
        operation_id: (state == Approval.State.GRANTED, deadline if state == Approval.State.WAITING else None)
        for operation_id, state, deadline in rows
    }


def cancelling(operation_ids: Sequence[UUID]) -> dict[UUID, str]:
    """The policy, by operation, of those requests that expired under a policy by which their run is then cancelled."""
    expired = Approval.objects.filter(
        operation_id__in=operation_ids, state=Approval.State.EXPIRED, on_expiry=Expiry.CANCEL_RUN
    )
    return dict(expired.values_list("operation_id", "policy_name"))


def requests(
    project: str, *, state: str | None = None, run_id: UUID | None = None, below: tuple[datetime, UUID] | None = None
) -> QuerySet[Approval]:
    """The requests of a project, newest first; `below` is the place of the last one seen."""
    found = Approval.objects.filter(project=project)
    if state is not None:
        found = found.filter(state=state)
    if run_id is not None:
        found = found.filter(run_id=run_id)
    if below is not None:
        at, approval_id = below
        found = found.filter(Q(requested_at__lt=at) | Q(id__lt=approval_id), requested_at__lte=at)
    return found.order_by("-requested_at", "-id")


def decidable(requests: QuerySet[Approval], decider: Decider) -> QuerySet[Approval]:
    """Those that wait, are in time, and that this person may say yes to and has not yet."""
    names = people.same_person(decider.names | {decider.name})
    mine = requests.filter(Q(group="") | Q(group__in=decider.groups), state=Approval.State.WAITING)
    lowered = {name.lower() for name in names}
    theirs = Approval.objects.annotate(starter=Lower("requested_by"), editor=Lower("edited_by"))
    own = theirs.filter(Q(starter__in=lowered) | Q(editor__in=lowered), four_eyes=True, pk=OuterRef("pk"))
    voted = Decision.objects.filter(approval=OuterRef("pk"), applied=True, verdict="approve", actor__in=names)
    return mine.filter(~Exists(voted), ~Exists(own), deadline_at__gt=Now())


def successor(approval: Approval) -> UUID | None:
    """The request that stands in the place of one that was replaced."""
    if approval.state not in Approval.REPLACED:
        return None
    others = Approval.objects.filter(operation_id=approval.operation_id, supersedes=approval.id)
    found: UUID | None = others.values_list("id", flat=True).first()
    return found


def request(project: str, approval_id: UUID) -> Approval:
    """One request with all tries to decide it. Raises NotFound for an absent or foreign one."""
    found = Approval.objects.filter(project=project, id=approval_id).prefetch_related("decisions").first()
    if found is None:
        raise NotFound("there is no such approval request")
    return found

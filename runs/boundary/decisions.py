"""What a person's decision, or its absence, does to the operation it is about. Runs inside that transaction."""

from __future__ import annotations

import logging
from typing import Any

from django.db.models.functions import Now
from django.dispatch import receiver

from approvals.models import Approval
from approvals.signals import resolved
from outbox import services as outbox
from runs.boundary import journal
from runs.boundary.reconcile import tell
from runs.models import Operation

logger = logging.getLogger(__name__)

STATES = {
    Approval.State.REJECTED: Operation.State.REJECTED,
    Approval.State.EXPIRED: Operation.State.EXPIRED,
    Approval.State.WITHDRAWN: Operation.State.WITHDRAWN,
}


@receiver(resolved)
def close_operation(approval: Approval, **_: Any) -> None:
    """A no closes the call with the person's words; a yes leaves it waiting for its dispatch. Either way: news."""
    state = STATES.get(Approval.State(approval.state))
    if state is not None:
        moved = Operation.objects.filter(id=approval.operation_id, state=Operation.State.AWAITING_APPROVAL).update(
            state=state, error_class=state, error_message=approval.reason, settled_at=Now()
        )
        if moved:
            outbox.append([journal.blocked(Operation.objects.get(id=approval.operation_id))])
        else:  # nothing is left to close, and the request's end must not be held up: its run may be ending
            logger.error("request %s was %s while its operation does not wait for it", approval.id, state)
    tell(approval.run_id)

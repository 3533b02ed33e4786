"""What adapters of remote tools ask of a dispatch before they send: the time they have, and a registration to read."""

from __future__ import annotations

from pydantic import ValidationError

from kernel_project.primitives import clock
from runs.boundary.contracts import Dispatch, NotSent


def seconds_left(dispatch: Dispatch) -> float:
    """How long the call may take. Raises NotSent when its deadline has passed."""
    left = (dispatch.deadline_at - clock.now()).total_seconds()
    if left <= 0:
        raise NotSent("the deadline passed before the call could be sent")
    return min(dispatch.timeout_seconds, left)


def unreadable(dispatch: Dispatch, error: ValidationError | KeyError) -> NotSent:
    """That the tool's registration cannot be read: where, and never the value, which may be secret."""
    if isinstance(error, KeyError):
        why = f"{error} is missing"
    else:
        first = error.errors(include_input=False, include_url=False)[0]
        why = f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"
    return NotSent(f"the registration of the tool {dispatch.tool!r} cannot be read: {why}")

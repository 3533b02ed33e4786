"""F5. What Temporal's errors say of a start or a resume: nothing was sent, it was turned down, or nobody knows."""

from __future__ import annotations

import pytest
from temporalio.service import RPCError, RPCStatusCode

from runs.loop import temporal


@pytest.mark.parametrize(
    ("status", "message", "code"),
    [
        (RPCStatusCode.UNAVAILABLE, "tcp connect error: Connection refused", "temporal_unavailable"),
        (RPCStatusCode.UNAVAILABLE, "connection reset", "temporal_unclear"),
        (RPCStatusCode.DEADLINE_EXCEEDED, "", "temporal_unclear"),
        (RPCStatusCode.RESOURCE_EXHAUSTED, "", "temporal_unclear"),
        (RPCStatusCode.PERMISSION_DENIED, "no", "temporal_refused"),
        (RPCStatusCode.NOT_FOUND, "namespace", "temporal_refused"),
    ],
)
@pytest.mark.parametrize("what", ["start", "resume"])
def test_a_request_that_was_turned_down_is_not_called_an_outage(what, status, message, code):
    assert temporal._unconfirmed(RPCError(message, status, b""), what).error_code == code

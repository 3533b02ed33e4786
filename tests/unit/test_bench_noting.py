"""The benchmark's latency counts an event from its acknowledgement only, not from any answer about it."""

from __future__ import annotations

from uuid import UUID

from kernel_project.primitives.ids import new_id
from outbox.bench import _Noting
from outbox.destination import ACKNOWLEDGED, UNSENT, Outgoing, Receipt, Verdict
from outbox.publisher import NullSink


class Answering(NullSink):
    """The second is refused, the third held, the fourth unsent, the fifth not named."""

    def deliver(self, batch, until=float("inf")):
        answers = [ACKNOWLEDGED, Receipt(Verdict.REFUSED), Receipt(Verdict.HELD), UNSENT]
        return {event.event_id: answer for event, answer in zip(batch, answers, strict=False)}


def test_only_an_acknowledged_event_is_noted():
    batch = [Outgoing(new_id(), 1, new_id(), "{}", "") for _ in range(5)]
    noted: dict[UUID, float] = {}
    _Noting(Answering(), noted).deliver(batch, float("inf"))
    assert list(noted) == [batch[0].event_id]

"""What one round of publishing has in hand: leased streams, their events, how far each came. Knows no database."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from outbox.destination import Outgoing, Receipt, Verdict, batch_bytes, fits
from temporality.contracts import BATCH_EVENTS_MAX

LEASE_SECONDS = 60.0  # of a stream
HELD_MAX_SECONDS = 60.0  # until a stream whose event was held is tried again
EVENTS_PER_STREAM = 200  # of one claim, so that a long backlog of one run does not keep the others waiting


@dataclass
class Lane:
    """A leased stream, what is to be sent of it, and how far it came."""

    run_id: UUID
    published: int
    head: int
    ready_at: datetime
    claimed_at: datetime
    events: list[Outgoing] = field(default_factory=list)  # one more than may be sent, if there are that many
    refused: list[tuple[Outgoing, Receipt]] = field(default_factory=list)
    stopped: bool = False  # its later events must wait
    held: str = ""  # why the event store did not take its next event, if that was about this event or stream
    moved: int = 0  # events that were acknowledged or refused for good

    def take(self, event: Outgoing, receipt: Receipt | None) -> None:
        """Go on over an acknowledged or refused event; stop at one that nobody answered for."""
        if self.stopped:
            return
        match receipt:
            case None:
                self.stopped, self.held = True, "the answer did not name the event"
            case Receipt(verdict=Verdict.HELD):
                self.stopped, self.held = True, receipt.error or receipt.reason
            case Receipt(verdict=Verdict.UNSENT):
                self.stopped = True
            case _:
                if receipt.verdict == Verdict.REFUSED:
                    self.refused.append((event, receipt))
                self.published = event.sequence
                self.moved += 1

    def due(self) -> list[Outgoing]:
        """What may be sent in this round and was not yet."""
        return [] if self.stopped else [e for e in self.events[:EVENTS_PER_STREAM] if e.sequence > self.published]

    def waits_since(self) -> str:
        """Since when the first event that is still to be sent waits; where this is not known, rather too early."""
        if left := next((event.recorded_at for event in self.events if event.sequence > self.published), None):
            return left
        if self.published >= self.head:  # whatever follows was written after the claim
            return self.claimed_at.isoformat()
        return self.events[-1].recorded_at if self.events else self.ready_at.isoformat()

    def outcome(self, token: UUID) -> Outcome:
        return Outcome(
            self.run_id, token, self.published, self.waits_since(), self.held, tuple(self.refused), self.moved
        )


@dataclass(frozen=True)
class Outcome:
    """What a round has to write down of one stream under its lease."""

    run_id: UUID
    token: UUID
    published: int
    waits_since: str
    held: str
    refused: tuple[tuple[Outgoing, Receipt], ...]
    moved: int

    @property
    def lease(self) -> tuple[UUID, UUID]:
        return self.run_id, self.token


def batches(lanes: Sequence[Lane]) -> Iterator[list[tuple[Lane, Outgoing]]]:
    """Pack the lanes' events into bodies that the store takes. The events of a lane stay in their order."""
    batch: list[tuple[Lane, Outgoing]] = []
    size = 0
    for lane in lanes:
        for event in lane.due():
            if lane.stopped:  # meanwhile, by an earlier batch
                break
            adds = batch_bytes(event.envelope)
            if batch and (len(batch) >= BATCH_EVENTS_MAX or not fits(size + adds)):
                yield batch
                batch, size = [], 0
                if lane.stopped:
                    break
            batch.append((lane, event))
            size += adds
    if batch:
        yield batch


def chains(lanes: Sequence[Lane], count_max: int) -> list[list[Lane]]:
    """Divide the lanes among parallel senders, about the same work for each; a lane is in one chain only.

    There are no more chains than there are whole batches to send.
    """
    total = sum(len(lane.due()) for lane in lanes)
    count = max(1, min(count_max, -(-total // BATCH_EVENTS_MAX)))
    made: list[list[Lane]] = [[] for _ in range(count)]
    loads = [0] * count
    for lane in sorted(lanes, key=lambda lane: -len(lane.due())):
        lightest = loads.index(min(loads))
        made[lightest].append(lane)
        loads[lightest] += len(lane.due())
    return [chain for chain in made if chain]

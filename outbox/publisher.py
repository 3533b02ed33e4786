"""Publish the journal: lease streams, send their events in order, move their cursors. At least once, never silently."""

from __future__ import annotations

import logging
import os
import random
import socket
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from django.db import close_old_connections, connection, transaction
from django.db.models import F, Q
from django.db.models.functions import Now

from kernel_project.primitives.sql import load
from outbox.destination import ACKNOWLEDGED, DestinationFailed, Outgoing, Receipt, Sink, Verdict, batch_bytes, fits
from outbox.models import Destination, ParkedEvent, PublisherHeartbeat
from temporality.contracts import BATCH_EVENTS_MAX

logger = logging.getLogger(__name__)
HERE = Path(__file__).parent

LEASE_SECONDS = 60.0  # of a stream
SEND_BUDGET_SECONDS = 15.0  # one request and its acknowledgement; with less of the lease left nothing is sent
STREAMS_PER_CLAIM = 100
EVENTS_PER_STREAM = 200  # of one claim, so that a long backlog of one run does not keep the others waiting
POLL_SECONDS = 0.02  # between looks when there was nothing to do
BEAT_SECONDS = 1.0  # heartbeat, and a look without the hint
PLACE_SECONDS = 5.0  # a publisher that does not renew its place this long is replaced
BACKOFF_FIRST_SECONDS = 0.5
BACKOFF_MAX_SECONDS = 60.0
HELD_DELAY_SECONDS = 5.0  # until a stream whose event the store could not take is tried again
LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass
class Lane:
    """A leased stream, what is to be sent of it, and how far it came."""

    run_id: UUID
    published: int
    head: int
    events: list[Outgoing] = field(default_factory=list)  # one more than may be sent, if there are that many
    refused: list[tuple[Outgoing, Receipt]] = field(default_factory=list)
    stopped: str = ""  # why its later events must wait
    sent: bool = False

    def take(self, event: Outgoing, receipt: Receipt | None) -> None:
        """Go on over an acknowledged or parked event; stop at one that nobody answered for."""
        if self.stopped:
            return
        if receipt is None or receipt.verdict == Verdict.HELD:
            self.stopped = receipt.error or receipt.reason if receipt else "the answer did not name the event"
            return
        if receipt.verdict == Verdict.REFUSED:
            self.refused.append((event, receipt))
        self.published = event.sequence

    def due(self) -> list[Outgoing]:
        """What may be sent in this round."""
        return self.events[:EVENTS_PER_STREAM]

    def waits_since(self) -> datetime | None:
        """When the first event that is still to be sent was written, as far as this round has read."""
        return next((event.recorded_at for event in self.events if event.sequence > self.published), None)


class Publisher:
    """One publisher. Authority comes from the database clock only: its place at the destination, and stream leases."""

    def __init__(self, sink: Sink, name: str = "") -> None:
        self.sink = sink
        self.name = name or f"{socket.gethostname()}/{os.getpid()}"
        self.place = uuid4()
        self.published = 0
        self.fenced = 0
        self._hint = LONG_AGO
        self._beat_at = 0.0
        self._has_place = False

    def run(self, seconds: float) -> int:
        """Publish for so long, or until another publisher has the place; returns how many events went out."""
        until = time.monotonic() + seconds
        self._has_place = self._take_place()
        if not self._has_place:
            return 0
        try:
            while time.monotonic() < until and self._beat():
                if self._closed_circuit() and self.pass_once():
                    continue
                time.sleep(POLL_SECONDS)
        finally:
            self._leave_place()
            self._has_place = False
            close_old_connections()
        return self.published

    def drain(self, passes_max: int = 10_000) -> int:
        """Publish until nothing is ready, without a place of its own: for tests and benchmarks."""
        for _ in range(passes_max):
            self._hint = LONG_AGO
            if not self.pass_once():
                break
        return self.published

    def pass_once(self) -> int:
        """One round: claim, read, send, advance. Returns how many events were acknowledged or parked."""
        token, lanes = self._claim()
        if not lanes:
            return 0
        leased_until = time.monotonic() + LEASE_SECONDS
        self._read(lanes)
        failure: DestinationFailed | None = None
        try:
            for batch in batches(lanes, first=self._first_batch()):
                if time.monotonic() + SEND_BUDGET_SECONDS > leased_until or not self._still_ours():
                    break
                self._send(batch)
        except DestinationFailed as error:
            failure = error
        done = self._advance(token, lanes, failure)
        self._note(failure)
        self.published += done
        return done

    def _claim(self) -> tuple[UUID, list[Lane]]:
        token = uuid4()
        parameters = {
            "hint": self._hint, "streams": STREAMS_PER_CLAIM, "token": token, "lease_seconds": LEASE_SECONDS,
        }  # fmt: skip
        rows = _query("claim", parameters)
        if rows:
            self._hint = min(row[3] for row in rows)
        return token, [Lane(run_id, published, head) for run_id, published, head, _, _ in rows]

    def _read(self, lanes: Sequence[Lane]) -> None:
        by_run = {lane.run_id: lane for lane in lanes}
        parameters = {
            "run_ids": [lane.run_id for lane in lanes],
            "after": [lane.published for lane in lanes],
            "upto": [lane.head for lane in lanes],
            "per_stream": EVENTS_PER_STREAM,
        }
        for row in _query("read", parameters):
            by_run[row[0]].events.append(Outgoing(*row))

    def _send(self, batch: Sequence[tuple[Lane, Outgoing]]) -> None:
        due = [(lane, event) for lane, event in batch if not lane.stopped]
        if not due:
            return
        assert not connection.in_atomic_block, "no transaction is open while we send (T30)"
        receipts = self.sink.deliver([event for _, event in due])
        for lane, event in due:
            lane.sent = True
            lane.take(event, receipts.get(event.event_id))

    def _advance(self, token: UUID, lanes: Sequence[Lane], failure: DestinationFailed | None) -> int:
        """Move the cursors and park what was refused, in one short transaction; a lost lease changes nothing."""
        before = {lane.run_id: lane.events[0].sequence - 1 if lane.events else lane.published for lane in lanes}
        with transaction.atomic():
            parameters = {
                "token": token,
                "run_ids": [lane.run_id for lane in lanes],
                "published": [lane.published for lane in lanes],
                "waits_since": [lane.waits_since() for lane in lanes],
                "delays": [HELD_DELAY_SECONDS if lane.stopped else 0.0 for lane in lanes],
                "unused": [not lane.sent or failure is not None for lane in lanes],
                "errors": [lane.stopped for lane in lanes],
            }
            kept = {row[0] for row in _query("advance", parameters)}
            self.fenced += len(lanes) - len(kept)
            moved = [lane for lane in lanes if lane.run_id in kept]
            park(refused for lane in moved for refused in lane.refused)
        return sum(lane.published - before[lane.run_id] for lane in moved)

    def _first_batch(self) -> int:
        """While the circuit is half open the first batch is one event; once that is taken, whole ones follow."""
        row = Destination.objects.filter(name=self.sink.name).values_list("failures", flat=True).first()
        return 1 if row else BATCH_EVENTS_MAX

    def _closed_circuit(self) -> bool:
        is_open = Q(name=self.sink.name, open_until__gt=Now())
        return not Destination.objects.filter(is_open).exists()

    def _note(self, failure: DestinationFailed | None) -> None:
        """Open the circuit after a failure, with full jitter or as long as the store asked; close it on success."""
        row = Destination.objects.filter(name=self.sink.name)
        if failure is None:
            row.update(failures=0, open_until=None, last_error="", last_success_at=Now())
            return
        failures = (row.values_list("failures", flat=True).first() or 0) + 1
        delay = failure.retry_after_seconds or random.uniform(0, backoff_seconds(failures))  # noqa: S311  no secret
        row.update(failures=F("failures") + 1, open_until=Now() + timedelta(seconds=delay), last_error=failure.message)
        logger.warning("the event store takes nothing (%s); next try in %.1f s", failure.message, delay)

    def _take_place(self) -> bool:
        Destination.objects.get_or_create(name=self.sink.name)
        return self._renew(Q(worker_until__isnull=True) | Q(worker_until__lt=Now()))

    def _renew(self, condition: Q) -> bool:
        until = Now() + timedelta(seconds=PLACE_SECONDS)
        row = Destination.objects.filter(condition, name=self.sink.name)
        return row.update(worker_token=self.place, worker_until=until) == 1

    def _leave_place(self) -> None:
        Destination.objects.filter(name=self.sink.name, worker_token=self.place).update(
            worker_token=None, worker_until=None
        )

    def _still_ours(self) -> bool:
        """Between two batches, too: a slow store must not make us look dead."""
        return not self._has_place or self._beat()

    def _beat(self) -> bool:
        """Once a second: prove that the place is still ours, write the heartbeat, and look without the hint."""
        if time.monotonic() - self._beat_at < BEAT_SECONDS:
            return True
        self._beat_at = time.monotonic()
        self._hint = LONG_AGO
        PublisherHeartbeat.objects.update_or_create(
            publisher=self.name,
            defaults={"beat_at": Now(), "published_total": self.published, "fenced_total": self.fenced},
        )
        return self._renew(Q(worker_token=self.place, worker_until__gt=Now()))


def batches(lanes: Sequence[Lane], first: int = BATCH_EVENTS_MAX) -> Iterable[list[tuple[Lane, Outgoing]]]:
    """Pack the lanes' events into bodies that the store takes, the first of at most `first` events.

    The events of a lane stay in their order.
    """
    batch: list[tuple[Lane, Outgoing]] = []
    size, limit = 0, first
    for lane in lanes:
        for event in lane.due():
            adds = batch_bytes(event.envelope)
            if batch and (len(batch) >= limit or not fits(size + adds)):
                yield batch
                batch, size, limit = [], 0, BATCH_EVENTS_MAX
            batch.append((lane, event))
            size += adds
    if batch:
        yield batch


def park(refused: Iterable[tuple[Outgoing, Receipt]]) -> None:
    """Keep what the store refused for good, for a person to look at; a repeat changes nothing."""
    ParkedEvent.objects.bulk_create(
        [
            ParkedEvent(
                event_id=event.event_id, run_id=event.run_id, sequence=event.sequence, reason=receipt.reason,
                last_error=receipt.error,
            )
            for event, receipt in refused
        ],
        ignore_conflicts=True,
    )  # fmt: skip


def backoff_seconds(failures: int) -> float:
    """The ceiling of the wait after so many failures in a row."""
    return float(min(BACKOFF_FIRST_SECONDS * 2 ** min(failures - 1, 10), BACKOFF_MAX_SECONDS))


def _query(name: str, parameters: dict[str, Any]) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(load(HERE, name), parameters)
        return list(cursor.fetchall())


class NullSink:
    """Acknowledges everything at once: shows what the publisher itself can do."""

    name = "null"

    def deliver(self, batch: Sequence[Outgoing]) -> dict[UUID, Receipt]:
        return {event.event_id: ACKNOWLEDGED for event in batch}

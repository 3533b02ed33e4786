"""Publish the journal: lease streams, send their events in order, move their cursors. At least once, never silently."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from django.db import Error, InterfaceError, OperationalError, connection, transaction

from kernel_project.primitives.sql import load
from outbox import parked, place
from outbox.destination import (
    ACKNOWLEDGED,
    ANSWER_SECONDS_MAX,
    CONNECT_SECONDS_MAX,
    RETRY_AFTER_MAX_SECONDS,
    SILENCE_SECONDS_MAX,
    STORAGE,
    DestinationFailed,
    Outgoing,
    Receipts,
    Sink,
)  # fmt: skip
from outbox.lanes import EVENTS_PER_STREAM, HELD_MAX_SECONDS, LEASE_SECONDS, Lane, Outcome, batches, chains

logger = logging.getLogger(__name__)
HERE = Path(__file__).parent

SEND_BUDGET_SECONDS = 35.0  # the longest request, until it is cut off for good, and the move of the cursor after it
ABORT_SECONDS_MAX = SILENCE_SECONDS_MAX + 5.0  # until a request that was cut off notices it
ROUND_SECONDS = 2.0  # after which no more requests begin, so that a slow store keeps no fresh event waiting for long
STREAMS_PER_CLAIM = 100
BYTES_PER_STREAM = 512 * 1024  # of one claim: with STREAMS_PER_CLAIM the most that a round holds in memory
SENDERS = 4  # requests on their way at once, never two of the same run
POLL_SECONDS = 0.02  # between looks when there was nothing to do
IDLE_POLL_SECONDS = 0.05  # when there has been nothing for IDLE_AFTER_SECONDS
IDLE_AFTER_SECONDS = 1.0
BEAT_SECONDS = 1.0  # heartbeat, renewal of the place, replays
SWEEP_SECONDS = 1.0  # a look without the hint
SWEEP_SHARE = 0.05  # of the time that looks without the hint may take, when dead index entries make them slow
SWEEP_SECONDS_MAX = 10.0
HELD_FIRST_SECONDS = 5.0  # until a stream whose event was held is tried again, doubling
RECONNECT_SECONDS_MAX = 5.0  # between two tries when the database is away
LATE_MAX = 1_000  # streams whose outcome waits for a writer; what is beyond is sent again
LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


class Publisher:
    """One publisher. Authority comes from the database clock only: its place at the destination, and stream leases."""

    def __init__(self, sink: Sink, name: str = "") -> None:
        self.sink = sink
        self.name = name or f"{socket.gethostname()}/{os.getpid()}"
        self.place = uuid4()
        self.published = 0
        self.fenced = 0
        self._told = (0, 0)  # of them, what the heartbeat knows
        self._hint = LONG_AGO
        self._sweep_at = 0.0
        self._beat_at = 0.0
        self._noted_at = 0.0
        self._replayed_at = 0.0
        self._failures = 0
        self._late: list[Outcome] = []  # what could not be written down yet, because somebody writes to the stream
        self._has_place = False
        self._stop = threading.Event()
        self._senders = ThreadPoolExecutor(SENDERS, thread_name_prefix="outbox-sender")

    def close(self) -> None:
        self._senders.shutdown(wait=False)

    def stop(self) -> None:
        """End `run` after the round at hand; may be called from a signal handler."""
        self._stop.set()

    def run(self, seconds: float, *, stand_by: bool = False) -> int:
        """Publish for so long, or until another publisher has the place; returns how many events went out.

        With `stand_by` it waits for the place instead of leaving. A database that is away is waited for.
        """
        until, pause = time.monotonic() + seconds, POLL_SECONDS
        while time.monotonic() < until and not self._stop.is_set():
            try:
                self._work(until)
                if not stand_by:
                    break
                pause = BEAT_SECONDS
            except (OperationalError, InterfaceError) as error:
                logger.warning("the database is away (%s); trying again", type(error).__name__)
                pause = min(pause * 2, RECONNECT_SECONDS_MAX)
                _drop_connection()
            self._stop.wait(max(0.0, min(pause, until - time.monotonic())))
        return self.published

    def _work(self, until: float) -> None:
        """Take the place, if it is to be had, and work there until the time is over or the place is lost."""
        self._has_place = place.take(self.sink.name, self.place)
        worked_at = time.monotonic()
        try:
            while self._has_place and time.monotonic() < until and not self._stop.is_set() and self._beat():
                if self.pass_once() + self._replay():
                    worked_at = time.monotonic()
                    continue
                idle = time.monotonic() - worked_at > IDLE_AFTER_SECONDS
                self._stop.wait(IDLE_POLL_SECONDS if idle else POLL_SECONDS)
        finally:
            self._leave()

    def _leave(self) -> None:
        had, self._has_place = self._has_place, False
        try:
            if had:
                self._tell()
                place.leave(self.sink.name, self.place)
        except Error:  # then it expires; what went wrong before matters more
            logger.warning("the publisher's place was not given back; it expires")
        finally:
            _drop_connection()

    def drain(self, passes_max: int = 10_000) -> int:
        """Publish until nothing is ready, without a place of its own: for tests and benchmarks."""
        for _ in range(passes_max):
            self._hint = LONG_AGO
            if not self.pass_once():
                break
        return self.published

    def pass_once(self) -> int:
        """One round: claim, read, send, advance. Returns how many events were acknowledged or parked."""
        began = time.monotonic()
        token, lanes = self._claim()
        if not lanes:
            return self._finish(token, lanes)
        self._read(lanes)
        until = min(began + LEASE_SECONDS - SEND_BUDGET_SECONDS, time.monotonic() + ROUND_SECONDS)
        failure = self._send(lanes, until)
        done = self._finish(token, lanes)
        self._note(failure, any(lane.moved for lane in lanes))
        return done

    def _finish(self, token: UUID, lanes: Sequence[Lane]) -> int:
        done = self._advance(token, lanes)
        self.published += done
        return done

    def _claim(self) -> tuple[UUID, list[Lane]]:
        """At most STREAMS_PER_CLAIM streams, and the token of their leases; none if the circuit is open."""
        token, began = uuid4(), time.monotonic()
        sweeps = began >= self._sweep_at
        parameters = {
            "hint": LONG_AGO if sweeps else self._hint, "streams": STREAMS_PER_CLAIM, "token": token,
            "lease_seconds": LEASE_SECONDS, "destination": self.sink.name, "held_max_seconds": HELD_MAX_SECONDS,
            "circuit_max_seconds": RETRY_AFTER_MAX_SECONDS, "margin_seconds": place.CLOCK_MARGIN_SECONDS,
        }  # fmt: skip
        rows = _query("claim", parameters)
        if sweeps:
            took = time.monotonic() - began
            self._sweep_at = began + min(max(SWEEP_SECONDS, took / SWEEP_SHARE), SWEEP_SECONDS_MAX)
        if rows:
            self._hint = min(row[3] for row in rows)
            self._failures = rows[0][5]
        return token, [Lane(*row[:5]) for row in rows]

    def _read(self, lanes: Sequence[Lane]) -> None:
        by_run = {lane.run_id: lane for lane in lanes}
        parameters = {
            "run_ids": [lane.run_id for lane in lanes],
            "after": [lane.published for lane in lanes],
            "upto": [lane.head for lane in lanes],
            "per_stream": EVENTS_PER_STREAM,
            "bytes_per_stream": BYTES_PER_STREAM,
        }
        for row in _query("read", parameters):
            by_run[row[0]].events.append(Outgoing(*row))
        for lane in lanes:
            _stop_at_gap(lane)

    def _send(self, lanes: Sequence[Lane], until: float) -> DestinationFailed | None:
        """Send what the lanes hold, several requests at a time; returns what the store as a whole suffers from."""
        assert not connection.in_atomic_block, "no transaction is open while we send (T30)"
        work = [lane for lane in lanes if lane.events]
        cancel = threading.Event()
        half_open = bool(self._failures and work)
        if half_open and (failure := self._send_probe(work[0], until)):
            return failure
        sending = [self._senders.submit(self._send_chain, chain, until, cancel) for chain in chains(work, SENDERS)]
        try:
            self._wait_for(sending, until, cancel)
        finally:
            cancel.set()
        failures = [future.exception() for future in sending]
        unexpected = next((e for e in failures if e is not None and not isinstance(e, DestinationFailed)), None)
        if unexpected:
            raise unexpected
        return next((e for e in failures if isinstance(e, DestinationFailed)), None)

    def _send_probe(self, lane: Lane, until: float) -> DestinationFailed | None:
        """Half open, one event shows whether the store takes anything."""
        event = lane.events[0]
        try:
            receipts = self.sink.deliver([event], until)
        except DestinationFailed as failure:
            return failure
        lane.take(event, receipts.get(event.event_id))
        return _storage_failure(receipts)

    def _send_chain(self, chain: Sequence[Lane], until: float, cancel: threading.Event) -> None:
        """Runs in a sender's thread: one request after the other, so that the events of a run keep their order."""
        for batch in batches(chain):
            if cancel.is_set() or time.monotonic() > until:
                return
            try:
                receipts = self.sink.deliver([event for _, event in batch], until)
            except DestinationFailed:
                cancel.set()
                raise
            for lane, event in batch:
                lane.take(event, receipts.get(event.event_id))
            if failure := _storage_failure(receipts):
                cancel.set()
                raise failure

    def _wait_for(self, sending: Sequence[Future[None]], until: float, cancel: threading.Event) -> None:
        """Wait for the senders, and keep the place meanwhile: a slow store must not make us look dead."""
        hard_end = until + CONNECT_SECONDS_MAX + ANSWER_SECONDS_MAX
        left: set[Future[None]] = set(sending)
        while left:
            left = wait(left, timeout=BEAT_SECONDS).not_done
            if left and not self._still_ours():
                cancel.set()
            if left and time.monotonic() > hard_end:
                self.sink.abort()
                left = wait(left, timeout=ABORT_SECONDS_MAX).not_done
                assert not left, "a sender did not end although its connection was cut"

    def _advance(self, token: UUID, lanes: Sequence[Lane]) -> int:
        """Write down what became of the lanes, and of earlier ones whose streams somebody was writing to.

        It waits for no writer: what cannot be written down now is tried again after each round while its lease holds.
        After that the events are sent again, and are `repeated`. A lost lease changes nothing.
        """
        outcomes = [*self._late, *(lane.outcome(token) for lane in lanes)]
        if not outcomes:
            return 0
        with transaction.atomic():
            kept = _move_cursors(outcomes)
            moved = [outcome for outcome in outcomes if outcome.lease in kept]
            parked.park(refused for outcome in moved for refused in outcome.refused)
            left = [outcome for outcome in outcomes if outcome.lease not in kept]
            held = _still_leased(left) if left else set()
        self._late = [outcome for outcome in left if outcome.lease in held][:LATE_MAX]
        self.fenced += sum(outcome.lease not in held for outcome in left)
        return sum(outcome.moved for outcome in moved)

    def _note(self, failure: DestinationFailed | None, something_went: bool) -> None:
        """Keep the circuit as the store is. A success is written down when it changes something, or once a second."""
        if failure is not None:
            place.note_failure(self.sink.name, failure)
        elif something_went and (self._failures or time.monotonic() - self._noted_at > BEAT_SECONDS):
            place.note_success(self.sink.name)
            self._noted_at = time.monotonic()

    def _replay(self) -> int:
        """Once a second: send again what a person asked for. Returns how many events were taken."""
        if time.monotonic() - self._replayed_at < BEAT_SECONDS:
            return 0
        self._replayed_at = time.monotonic()
        try:
            return parked.send_queued(self.sink, time.monotonic() + ROUND_SECONDS)
        except DestinationFailed as failure:
            place.note_failure(self.sink.name, failure)
            return 0

    def _still_ours(self) -> bool:
        return not self._has_place or self._beat()

    def _beat(self) -> bool:
        """Once a second: prove that the place is still ours, write the heartbeat."""
        if time.monotonic() - self._beat_at < BEAT_SECONDS:
            return True
        self._beat_at = time.monotonic()
        self._tell()
        return place.renew(self.sink.name, self.place)

    def _tell(self) -> None:
        published, fenced = self.published - self._told[0], self.fenced - self._told[1]
        place.beat(self.name, published, fenced)
        self._told = (self._told[0] + published, self._told[1] + fenced)


def _move_cursors(outcomes: Sequence[Outcome]) -> set[tuple[UUID, UUID]]:
    """Returns the leases under which it was done."""
    parameters = {
        **_leases(outcomes),
        "published": [outcome.published for outcome in outcomes],
        "waits_since": [outcome.waits_since for outcome in outcomes],
        "held": [outcome.held for outcome in outcomes],
        "held_first_seconds": HELD_FIRST_SECONDS,
        "held_max_seconds": HELD_MAX_SECONDS,
    }
    return {(run_id, token) for run_id, token in _query("advance", parameters)}


def _still_leased(outcomes: Sequence[Outcome]) -> set[tuple[UUID, UUID]]:
    return {(run_id, token) for run_id, token in _query("still_leased", _leases(outcomes))}


def _leases(outcomes: Sequence[Outcome]) -> dict[str, list[UUID]]:
    return {"run_ids": [o.run_id for o in outcomes], "tokens": [o.token for o in outcomes]}


def _stop_at_gap(lane: Lane) -> None:
    """A number that is missing from the journal is an alarm: nothing of the run goes out beyond it (T06)."""
    lane.events.sort(key=lambda event: event.sequence)
    wanted = lane.published + 1
    for place_of, event in enumerate(lane.events):
        if event.sequence != wanted:
            del lane.events[place_of:]
            break
        wanted += 1
    if not lane.events:
        lane.stopped, lane.held = True, f"event {lane.published + 1} is missing from the journal"


def _storage_failure(receipts: Receipts) -> DestinationFailed | None:
    """A store that keeps nothing of a whole batch is down, whatever its HTTP status says."""
    if receipts and all(receipt.reason == STORAGE for receipt in receipts.values()):
        return DestinationFailed("the event store answers every event with a storage error")
    return None


def _drop_connection() -> None:
    """Nothing of ours is in a transaction: the next use takes a connection that was checked."""
    if not connection.in_atomic_block:
        connection.close()


def _query(name: str, parameters: dict[str, Any]) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(load(HERE, name), parameters)
        return list(cursor.fetchall())


class NullSink:
    """Acknowledges everything at once: shows what the publisher itself can do."""

    name = "null"

    def deliver(self, batch: Sequence[Outgoing], until: float = float("inf")) -> Receipts:
        return dict.fromkeys((event.event_id for event in batch), ACKNOWLEDGED)

    def abort(self) -> None:
        pass

"""Speak the event store's wire contract: send a batch, and say of each event what became of it. Keeps no state."""

from __future__ import annotations

import email.utils
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Protocol
from uuid import UUID

import httpx2
from pydantic import ValidationError

from kernel_project.primitives.clock import now
from temporality.contracts import BODY_BYTES_MAX, CONFLICT_ERROR, EVENTS_PATH, STORAGE_ERROR, IngestAnswer, IngestResult

REQUEST_TIMEOUT_SECONDS = 10.0
RETRY_AFTER_MAX_SECONDS = 3_600.0
ERROR_CHARS_MAX = 500
WRAPPING = len(b'{"events":[]}')


class Verdict(Enum):
    """What an answer means for one event."""

    ACKNOWLEDGED = "acknowledged"
    REFUSED = "refused"  # for good: the event is parked
    HELD = "held"  # not now and not because of the store as a whole: its stream waits


@dataclass(frozen=True)
class Outgoing:
    """One event as it stands in the journal."""

    run_id: UUID
    sequence: int
    event_id: UUID
    envelope: str
    recorded_at: datetime


@dataclass(frozen=True)
class Receipt:
    verdict: Verdict
    reason: str = ""
    error: str = ""


ACKNOWLEDGED = Receipt(Verdict.ACKNOWLEDGED)
Receipts = dict[UUID, Receipt]


class DestinationFailed(Exception):
    """The event store as a whole does not take events now. No event is to blame and none is lost."""

    def __init__(self, message: str, retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.message = message[:ERROR_CHARS_MAX]
        self.retry_after_seconds = retry_after_seconds


class Sink(Protocol):
    """Where the publisher sends."""

    name: str

    def deliver(self, batch: Sequence[Outgoing]) -> Receipts:
        """Send events and return a receipt for each that the other side answered for; a missing one means HELD.

        Raises DestinationFailed when the other side takes nothing now.
        """


class EventStore:
    """A server that speaks `temporality.event/1`; one that knows only the public part of it is enough."""

    def __init__(self, url: str, token: str, client: httpx2.Client | None = None) -> None:
        self.name = url
        self._url = url.rstrip("/") + EVENTS_PATH
        self._client = client or httpx2.Client(timeout=REQUEST_TIMEOUT_SECONDS, trust_env=False)
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    def close(self) -> None:
        self._client.close()

    def deliver(self, batch: Sequence[Outgoing]) -> Receipts:
        """As in Sink. A batch that is refused as a whole is halved until the guilty event stands alone."""
        try:
            answer = self._client.post(self._url, content=body_of(batch), headers=self._headers)
        except httpx2.HTTPError as error:
            raise DestinationFailed(f"{type(error).__name__}: the event store cannot be reached") from error
        match answer.status_code:
            case 200 | 207:
                return _receipts(answer)
            case 400 | 403 | 413 | 422 if len(batch) > 1:
                middle = len(batch) // 2
                return self.deliver(batch[:middle]) | self.deliver(batch[middle:])
            case 400 | 422:
                return {batch[0].event_id: Receipt(Verdict.REFUSED, "invalid", _error(answer))}
            case 413:
                return {batch[0].event_id: Receipt(Verdict.REFUSED, "too_large", _error(answer))}
            case 403:  # this project is not ours to write: its streams wait, the others go on
                return {batch[0].event_id: Receipt(Verdict.HELD, "forbidden", _error(answer))}
        raise DestinationFailed(f"HTTP {answer.status_code}: {_error(answer)}", _retry_after(answer))


def body_of(batch: Sequence[Outgoing]) -> bytes:
    """The request body: the stored texts, joined. Nothing is serialised again."""
    return b'{"events":[' + b",".join(event.envelope.encode() for event in batch) + b"]}"


def batch_bytes(envelope: str) -> int:
    """How much one event adds to a body."""
    return len(envelope.encode()) + 1


def fits(bytes_so_far: int) -> bool:
    """Whether a body of this many event bytes is within the contract's limit."""
    return bytes_so_far + WRAPPING <= BODY_BYTES_MAX


def _receipts(answer: httpx2.Response) -> Receipts:
    try:
        results = IngestAnswer.model_validate_json(answer.content).results
        return {UUID(result.event_id): _receipt(result) for result in results}
    except (ValidationError, ValueError) as error:
        raise DestinationFailed(f"HTTP {answer.status_code} with an answer that is not the contract's") from error


def _receipt(result: IngestResult) -> Receipt:
    if result.status in ("accepted", "repeated"):
        return ACKNOWLEDGED
    error = result.error[:ERROR_CHARS_MAX]
    if result.code == "storage_error" or error == STORAGE_ERROR:
        return Receipt(Verdict.HELD, "storage_error", error)
    if result.code == "quarantined":  # stored; that it is not applied yet is the event store's to show
        return ACKNOWLEDGED
    conflict = result.code == "conflict" or error == CONFLICT_ERROR
    return Receipt(Verdict.REFUSED, "conflict" if conflict else "invalid", error)


def _error(answer: httpx2.Response) -> str:
    try:
        return str(json.loads(answer.content)["error"])[:ERROR_CHARS_MAX]
    except (ValueError, KeyError, TypeError):
        return "without an error text"


def _retry_after(answer: httpx2.Response) -> float | None:
    """Retry-After in seconds, from either of its forms."""
    text = answer.headers.get("Retry-After", "").strip()
    if text.isdigit():
        return min(float(text), RETRY_AFTER_MAX_SECONDS)
    try:
        moment = email.utils.parsedate_to_datetime(text)
        return min(max((moment - now()).total_seconds(), 0.0), RETRY_AFTER_MAX_SECONDS)
    except (ValueError, TypeError):
        return None

"""Speak the event store's wire contract: send a batch, and say of each event what became of it. Keeps no state."""

from __future__ import annotations

import contextlib
import email.utils
import hashlib
import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol
from uuid import UUID

import httpx2
from pydantic import BaseModel, ConfigDict, ValidationError

from kernel_project.primitives.clock import now
from temporality.contracts import BODY_BYTES_MAX, CONFLICT_ERROR, EVENTS_PATH, SEQUENCE_ERROR, STORAGE_ERROR

CONNECT_SECONDS_MAX = 5.0
SILENCE_SECONDS_MAX = 10.0  # between two pieces of an answer
ANSWER_SECONDS_MAX = 10.0  # until the whole answer is there, however many pieces it comes in
ANSWER_BYTES_MAX = 1024 * 1024  # a hundred results of ours are below 40 kB
RETRY_AFTER_MAX_SECONDS = 3_600.0
ERROR_CHARS_MAX = 500
NAME_CHARS_MAX = 100  # of the destination's row
NAME_DIGEST_CHARS = 32
WRAPPING = len(b'{"events":[]}')
GUILTY = re.compile(r"events\[(\d{1,4})\]: ")  # how a batch that is refused as a whole names the event


class Verdict(Enum):
    """What an answer means for one event."""

    ACKNOWLEDGED = "acknowledged"
    REFUSED = "refused"  # for good: the event is parked
    HELD = "held"  # not now, and not because of the store as a whole: its stream waits
    UNSENT = "unsent"  # there was no time left for it


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One event as it stands in the journal."""

    run_id: UUID
    sequence: int
    event_id: UUID
    envelope: str
    recorded_at: str  # as the database writes it: to parse it would cost more than all else about an event


@dataclass(frozen=True)
class Receipt:
    verdict: Verdict
    reason: str = ""
    error: str = ""


ACKNOWLEDGED = Receipt(Verdict.ACKNOWLEDGED)
UNSENT = Receipt(Verdict.UNSENT)
STORAGE = "storage_error"
Receipts = dict[UUID, Receipt]


class DestinationFailed(Exception):
    """The event store as a whole does not take events now. No event is to blame and none is lost."""

    def __init__(self, message: str, retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.message = _shown(message)
        self.retry_after_seconds = retry_after_seconds


class Sink(Protocol):
    """Where the publisher sends. Used by several threads at once."""

    name: str

    def deliver(self, batch: Sequence[Outgoing], until: float) -> Receipts:
        """Send events and return a receipt for each that the other side answered for; a missing one means HELD.

        No request begins after `until` (monotonic seconds); what it was too late for is UNSENT. Raises
        DestinationFailed when the other side takes nothing now.
        """

    def abort(self) -> None:
        """Cut off what is on its way: somebody waits too long for it."""


class Answer(NamedTuple):
    """One HTTP answer, read to its end."""

    status: int
    headers: httpx2.Headers
    body: bytes


class _Result(BaseModel):
    """What became of one event; a status that we do not know is no acknowledgement, and no refusal either."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    event_id: str
    status: str
    error: str | None = None
    code: str | None = None


class _IngestAnswer(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    results: list[_Result]


class EventStore:
    """A server that speaks `temporality.event/1`; one that knows only the public part of it is enough."""

    def __init__(self, url: str, token: str, client: httpx2.Client | None = None) -> None:
        self.name = destination_name(url)
        self._url = url.rstrip("/") + EVENTS_PATH
        self._client = client or _new_client()
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    def close(self) -> None:
        self._client.close()

    def abort(self) -> None:
        """As in Sink. Whoever waits for an answer finds its connection closed."""
        cut, self._client = self._client, _new_client()
        with contextlib.suppress(Exception):  # another thread is using it: that is the point
            cut.close()

    def deliver(self, batch: Sequence[Outgoing], until: float = float("inf")) -> Receipts:
        """As in Sink. A batch that is refused as a whole is divided until what is guilty stands alone."""
        if time.monotonic() > until:
            return {event.event_id: UNSENT for event in batch}
        answer = self._post(body_of(batch))
        match answer.status:
            case 200 | 207:
                return _receipts(answer, batch)
            case 413 if len(batch) > 1:
                return self._divided(_parts(batch, _error(answer)), until)
            case 413:
                return {batch[0].event_id: _too_large(answer)}
            case 400 | 403 | 422 if _verdict(answer) is not None:
                return self._refused(answer, batch, until)
        raise DestinationFailed(f"HTTP {answer.status}: {_error(answer)}", _retry_after(answer.headers))

    def _refused(self, answer: Answer, batch: Sequence[Outgoing], until: float) -> Receipts:
        """The event store itself takes no such batch, because of its events or of a project."""
        if answer.status == 403:
            if len(parts := _halves_by_run(batch)) > 1:
                return self._divided(parts, until)
            # this project is not ours to write: its streams wait, the others go on
            return {event.event_id: Receipt(Verdict.HELD, "forbidden", _error(answer)) for event in batch}
        if len(batch) > 1:
            return self._divided(_parts(batch, _error(answer)), until)
        return {batch[0].event_id: Receipt(Verdict.REFUSED, "invalid", _error(answer))}

    def _divided(self, parts: Sequence[Sequence[Outgoing]], until: float) -> Receipts:
        """Send the parts one after the other: the events of a run keep their order."""
        receipts: Receipts = {}
        for part in parts:
            receipts |= self.deliver(part, until)
        return receipts

    def _post(self, body: bytes) -> Answer:
        """One request, within ANSWER_SECONDS_MAX and ANSWER_BYTES_MAX whatever the other side does."""
        deadline = time.monotonic() + ANSWER_SECONDS_MAX
        pieces, size = [], 0
        try:
            with self._client.stream("POST", self._url, content=body, headers=self._headers) as response:
                for piece in response.iter_raw():
                    pieces.append(piece)
                    size += len(piece)
                    if size > ANSWER_BYTES_MAX:
                        raise DestinationFailed(f"HTTP {response.status_code} with an answer without end")
                    if time.monotonic() > deadline:
                        raise DestinationFailed(f"no whole answer within {ANSWER_SECONDS_MAX:.0f} seconds")
                return Answer(response.status_code, response.headers, b"".join(pieces))
        except httpx2.HTTPError as error:
            raise DestinationFailed(f"{type(error).__name__}: the event store cannot be reached") from error
        except (OSError, RuntimeError) as error:  # the connection was cut off by us while we waited
            raise DestinationFailed(f"{type(error).__name__}: the request was given up") from error


def destination_name(url: str) -> str:
    """The address, or of a long one its beginning and its hash: the name is a key of NAME_CHARS_MAX characters."""
    if len(url) <= NAME_CHARS_MAX:
        return url
    digest = hashlib.sha256(url.encode()).hexdigest()[:NAME_DIGEST_CHARS]
    return f"{url[: NAME_CHARS_MAX - NAME_DIGEST_CHARS - 1]}#{digest}"


def _new_client() -> httpx2.Client:
    timeout = httpx2.Timeout(SILENCE_SECONDS_MAX, connect=CONNECT_SECONDS_MAX)
    # a compressed answer is one we did not ask for
    return httpx2.Client(timeout=timeout, trust_env=False, headers={"Accept-Encoding": "identity"})


def body_of(batch: Sequence[Outgoing]) -> bytes:
    """The request body: the stored texts, joined. Nothing is serialised again."""
    return b'{"events":[' + b",".join(event.envelope.encode() for event in batch) + b"]}"


def batch_bytes(envelope: str) -> int:
    """How much one event adds to a body."""
    return len(envelope.encode()) + 1


def fits(bytes_so_far: int) -> bool:
    """Whether a body of this many event bytes is within the contract's limit."""
    return bytes_so_far + WRAPPING <= BODY_BYTES_MAX


def _parts(batch: Sequence[Outgoing], error: str) -> list[Sequence[Outgoing]]:
    """The runs that nothing is said about, then the one of the named event; of one run the named event alone between
    what stands before and after it; halves when none is named.
    """
    named = GUILTY.match(error)
    if named and int(named[1]) < len(batch):
        at = int(named[1])
        if others := [event for event in batch if event.run_id != batch[at].run_id]:
            return [others, [event for event in batch if event.run_id == batch[at].run_id]]
        return [part for part in (batch[:at], batch[at : at + 1], batch[at + 1 :]) if part]
    middle = len(batch) // 2
    return [batch[:middle], batch[middle:]]


def _halves_by_run(batch: Sequence[Outgoing]) -> list[Sequence[Outgoing]]:
    """Halves that share no run: all events of a run belong to one project."""
    runs = list(dict.fromkeys(event.run_id for event in batch))
    first = set(runs[: len(runs) // 2])
    halves = ([e for e in batch if e.run_id in first], [e for e in batch if e.run_id not in first])
    return [half for half in halves if half]


def _receipts(answer: Answer, batch: Sequence[Outgoing]) -> Receipts:
    """The receipts by event; names that we did not send are passed over, and of two answers for one event neither
    counts.
    """
    try:
        results = _IngestAnswer.model_validate_json(answer.body).results
    except (ValidationError, ValueError) as error:
        raise DestinationFailed(f"HTTP {answer.status} with an answer that is not the contract's") from error
    sent = {str(event.event_id): event.event_id for event in batch}
    found: Receipts = {}
    for result in results:
        event_id = sent.get(result.event_id)
        if event_id is None:
            continue
        receipt = _receipt(result)
        if found.setdefault(event_id, receipt) != receipt:
            found[event_id] = Receipt(Verdict.HELD, "contradiction", "the answer names the event twice, differently")
    return found


def _receipt(result: _Result) -> Receipt:
    error, code = _shown(result.error or ""), result.code or ""
    match result.status:
        case "accepted" | "repeated":
            return ACKNOWLEDGED
        case "rejected" if code == STORAGE or (result.error or "") == STORAGE_ERROR:
            return Receipt(Verdict.HELD, STORAGE, error)
        case "rejected" if code == "quarantined":  # stored; that it is not applied yet is the event store's to show
            return ACKNOWLEDGED
        case "rejected":
            conflict = code == "conflict" or result.error in (CONFLICT_ERROR, SEQUENCE_ERROR)
            return Receipt(Verdict.REFUSED, "conflict" if conflict else "invalid", error)
    return Receipt(Verdict.HELD, "unknown_status", f"the answer's status {_shown(result.status)[:40]!r} is unknown")


def _too_large(answer: Answer) -> Receipt:
    """One event alone. Something in between says so in its own words: the run waits, but nothing is parked for it."""
    verdict = Verdict.REFUSED if _verdict(answer) is not None else Verdict.HELD
    return Receipt(verdict, "too_large", _error(answer))


def _verdict(answer: Answer) -> str | None:
    """What the event store says in the contract's form, `{"error": "…"}` and nothing else.

    None for any other body: it comes from a proxy, a gateway or another service, and says nothing about events.
    """
    try:
        body = json.loads(answer.body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(body, dict) or body.keys() != {"error"} or not isinstance(body["error"], str):
        return None
    return _shown(body["error"]) if body["error"].strip() else None


def _error(answer: Answer) -> str:
    return _verdict(answer) or "without an error text of the contract"


def _shown(text: str) -> str:
    """Text of the other side, cut, and without what PostgreSQL does not store."""
    return text[:ERROR_CHARS_MAX].replace("\x00", "\ufffd").encode(errors="replace").decode()


def _retry_after(headers: httpx2.Headers) -> float | None:
    """Retry-After in seconds, from either of its forms; a date by the clock of the answer, if that has a date, too."""
    text = headers.get("Retry-After", "").strip()
    if text.isascii() and text.isdigit():
        return min(float(text[:9]), RETRY_AFTER_MAX_SECONDS)
    try:
        written_at = email.utils.parsedate_to_datetime(date) if (date := headers.get("Date")) else now()
        wait = (email.utils.parsedate_to_datetime(text) - written_at).total_seconds()
        return min(max(wait, 0.0), RETRY_AFTER_MAX_SECONDS)
    except (ValueError, TypeError, OverflowError, IndexError):
        return None

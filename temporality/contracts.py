"""The wire contract `temporality.event/1`: what a producer sends and what the event store answers.

The only module of this app that others may import. It imports no framework, and reads or writes nothing.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

SCHEMA: Final = "temporality.event/1"
EVENTS_PATH: Final = "/v1/observations/events"
RUN_STATE_PATH: Final = "/v1/observations/runs/state"
RUN_PROGRESS_PATH: Final = "/v1/observations/runs/progress"
KNOWLEDGE_PATH: Final = "/v1/observations/knowledge"
HEALTH_PATH: Final = "/healthz"

BATCH_EVENTS_MAX: Final = 100  # events of one request
BODY_BYTES_MAX: Final = 1024 * 1024  # of one request
READ_LIMIT_MAX: Final = 500  # events of one page
READ_LIMIT_DEFAULT: Final = 100  # events
PROGRESS_RUNS_MAX: Final = 200  # runs of one progress request: their ids must fit into a URL

NAME_CHARS_MAX: Final = 128  # source.id, context.project
ID_CHARS_MAX: Final = (
    256  # event_id, run, task, actor.id, …: project, source and id must fit into one index row of 2,704 bytes
)
TEXT_CHARS_MAX: Final = 2048  # integration, version, evidence: never indexed

CONFLICT_ERROR: Final = "source event ID already exists with different content"
SEQUENCE_ERROR: Final = "another event of the source already has this sequence in the run"
STORAGE_ERROR: Final = "storage error"

Status = Literal["accepted", "repeated", "rejected"]

RFC3339 = re.compile(
    r"(\d{4}-\d\d-\d\dT(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d)(?:\.(\d{1,9}))?(Z|[+-](?:[01]\d|2[0-3]):[0-5]\d)", re.ASCII
)


def parse_time(text: str) -> datetime:
    """The instant that an RFC 3339 text with offset names, in UTC; what is below a microsecond is cut off.

    Raises ValueError with a sentence for anything else, and for instants outside of the years 1 to 9999 in UTC.
    """
    match = RFC3339.fullmatch(text)
    if not match:
        raise ValueError("must be an RFC 3339 time with offset, such as 2025-03-01T10:00:00.000000Z")
    whole, fraction, zone = match.groups()
    try:
        moment = datetime.fromisoformat(
            f"{whole}.{(fraction or '0')[:6].ljust(6, '0')}{'+00:00' if zone == 'Z' else zone}"
        )
        return moment.astimezone(UTC)
    except (ValueError, OverflowError):
        raise ValueError("names a day or time that does not exist") from None


def format_time(moment: datetime) -> str:
    """The one form in which times are stored and answered: UTC, `Z`, microseconds."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _time(text: str) -> str:
    return format_time(parse_time(text))


# Patterns and lengths are checked by pydantic's Rust core, which also refuses half surrogate pairs: ingest is hot.
FILLED: Final = r"^[^\x00]*[^\s\x00][^\x00]*$"
_ANY = r"^[^\x00]*$"
Name = Annotated[str, StringConstraints(min_length=1, max_length=NAME_CHARS_MAX, pattern=FILLED)]
Id = Annotated[str, StringConstraints(min_length=1, max_length=ID_CHARS_MAX, pattern=FILLED)]
Text = Annotated[str, StringConstraints(min_length=1, max_length=TEXT_CHARS_MAX, pattern=FILLED)]
OptionalName = Annotated[str, StringConstraints(max_length=NAME_CHARS_MAX, pattern=_ANY)] | None
OptionalId = Annotated[str, StringConstraints(max_length=ID_CHARS_MAX, pattern=_ANY)] | None
OptionalText = Annotated[str, StringConstraints(max_length=TEXT_CHARS_MAX, pattern=_ANY)] | None
Time = Annotated[str, StringConstraints(max_length=64), AfterValidator(_time)]


class _Sent(BaseModel):
    """What a producer writes: no conversions, no member that we do not know."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


class Source(_Sent):
    """The producer installation: not a user, not a tenant."""

    id: Name
    integration: Text
    version: OptionalText = None


class Actor(_Sent):
    """Who caused the event."""

    id: OptionalId = None
    type: Literal["agent", "human", "system", "service", ""] | None = None


class Context(_Sent):
    """Where the event belongs. `parent_event_id` names an event of the same source."""

    project: OptionalName = None
    run: OptionalId = None
    task: OptionalId = None
    parent_event_id: OptionalId = None
    actor: Actor | None = None


class Evidence(_Sent):
    """A reference to something that can be looked at, such as `artifact://sha256/<hex>`."""

    ref: Text
    type: OptionalText = None


class EventEnvelope(_Sent):
    """One event as sent; null and an empty text stand for absent where a member is optional.

    `occurred_at` becomes UTC with microseconds. `received_at` is the server's: what a producer sends is ignored.
    """

    schema_: Annotated[Literal["temporality.event/1"], Field(alias="schema")]
    event_id: Id
    occurred_at: Time
    received_at: str | None = None
    source: Source
    context: Context | None = None
    type: Id
    data: dict[str, Any] | None = None
    evidence: list[Evidence] | None = None


class _Answered(BaseModel):
    """What a client reads, perhaps from a foreign or newer server: members that we do not know are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class RunProgress(_Answered):
    """What the store has received of one run: `contiguous` is the highest sequence below which nothing is missing."""

    source_id: str
    run: str
    contiguous: int
    highest: int
    count: int


class ProgressAnswer(_Answered):
    """Answer of RUN_PROGRESS_PATH; a run of which nothing has arrived is there with zeros."""

    runs: list[RunProgress]

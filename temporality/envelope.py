"""From the bytes of a request to events that can be stored: strict JSON, the envelope's rules, one canonical form.

Touches no database. What it lets through, PostgreSQL can hold.
"""

from __future__ import annotations

import json
import math
from json.decoder import WHITESPACE  # type: ignore[attr-defined]
from typing import Any, NamedTuple, NoReturn, TypeGuard

from pydantic import ValidationError

from kernel_project.primitives.canonical import DEPTH_MAX, NotCanonical, canonical_json
from kernel_project.primitives.errors import Invalid
from temporality import catalogue
from temporality.canonical_form import canonical_text, canonical_texts, is_canonical_event
from temporality.contracts import ID_CHARS_MAX, SCHEMA, EventEnvelope

SEQUENCE_MAX = 2**63 - 1  # what a bigint holds; nothing that counts events comes near
PARENTS_MAX = 100  # causes of one event; a longer list is not followed, and shown as malformed
ERROR_CHARS_MAX = 300
MALFORMED = ""  # stands in `parents` for a cause that is no event id


class Undecodable(Invalid):
    """The body is not a batch at all (HTTP 400)."""

    code = "undecodable"


class Decoded(NamedTuple):
    """One member of the batch: its value, and its text byte for byte."""

    value: Any
    raw: str
    has_float: bool
    is_canonical: bool = False  # the text is the one that we would write


class Incoming(NamedTuple):
    """One valid event with the columns that the store searches by. `raw` is None where it equals `content`."""

    source_id: str
    event_id: str
    project: str
    run: str
    task: str
    actor_id: str
    type: str
    subject_id: str
    sequence: int | None
    parents: list[str]
    occurred_at: str
    content: str
    raw: str | None
    quarantine: str


def decode_batch(body: bytes) -> list[Decoded]:
    """The events of `{"events":[…]}`. Raises Undecodable."""
    canonical = canonical_texts(body)
    if canonical is not None:
        return [Decoded(value, text, has_float=False, is_canonical=True) for value, text in canonical]
    return strict_batch(body)


def strict_batch(body: bytes) -> list[Decoded]:
    """As decode_batch, for a body of any form: each value beside its text. Raises Undecodable."""
    try:
        return _Batch(body.decode()).events()
    except UnicodeDecodeError as error:
        raise Undecodable(f"the body is not UTF-8 at byte {error.start}") from None
    except RecursionError:
        raise Undecodable("the body is nested too deeply") from None
    except StopIteration as error:
        raise Undecodable(f"the body is not JSON: a value is missing at character {error.value}") from None
    except ValueError as error:
        raise Undecodable(f"the body is not JSON: {str(error)[:ERROR_CHARS_MAX]}") from None


def read_event(decoded: Decoded) -> Incoming:
    """One event of a batch. Raises Invalid with a sentence that names the member."""
    content, text = _content_of(decoded)
    event_type, data, context = content["type"], content.get("data", {}), content.get("context", {})
    if event_type.startswith(catalogue.PROJECT_PREFIXES):
        _check_knowledge(event_type, data, content)
    return Incoming(
        source_id=content["source"]["id"],
        event_id=content["event_id"],
        project=context.get("project", ""),
        run=context.get("run", ""),
        task=context.get("task", ""),
        actor_id=context["actor"].get("id", "") if "actor" in context else "",
        type=event_type,
        subject_id=_subject(event_type, data),
        sequence=_sequence(data) if "run" in context else None,
        parents=_parents(context, data),
        occurred_at=content["occurred_at"],
        content=text,
        raw=None if decoded.raw == text else decoded.raw,
        quarantine=catalogue.quarantine_reason(event_type, data),
    )


def _content_of(decoded: Decoded) -> tuple[dict[str, Any], str]:
    """The content and its canonical text. Raises Invalid."""
    value = decoded.value
    if decoded.is_canonical and is_canonical_event(value):
        return value, decoded.raw
    if not isinstance(value, dict):
        raise Invalid("must be an object")
    try:
        envelope = EventEnvelope.model_validate(value)
        content = _content(value, envelope.occurred_at)
        return content, _canonical(content, decoded.has_float)
    except ValidationError as error:
        raise Invalid(catalogue.first_error(error)) from None
    except NotCanonical as error:
        raise Invalid(error.message) from None


class _Batch:
    """Walks over the outermost object by hand, so that each event's own text is at hand; the rest is json's scanner."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.floats = 0
        self.scan = json.JSONDecoder(
            parse_float=self._finite, parse_constant=_no_constant, object_pairs_hook=_distinct
        ).scan_once  # type: ignore[attr-defined]

    def events(self) -> list[Decoded]:
        self._skip("{")
        if self._value()[0] != "events":
            raise ValueError('the body must be an object with the one member "events"')
        self._skip(":")
        found = self._list()
        self._skip("}")
        if self.at != len(self.text):
            raise ValueError(f"nothing may follow the batch at character {self.at}")
        return found

    def _list(self) -> list[Decoded]:
        self._skip("[")
        found: list[Decoded] = []
        if self._peek() == "]":
            self._skip("]")
            return found
        while True:
            found.append(self._value())
            if self._peek() == "]":
                self._skip("]")
                return found
            self._skip(",")

    def _value(self) -> Decoded:
        start, floats = self.at, self.floats
        value, end = self.scan(self.text, start)
        self.at = WHITESPACE.match(self.text, end).end()
        return Decoded(value, self.text[start:end], self.floats > floats)

    def _peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def _skip(self, mark: str) -> None:
        start = WHITESPACE.match(self.text, self.at).end()
        if self.text[start : start + 1] != mark:
            raise ValueError(f"{mark} is expected at character {start}")
        self.at = WHITESPACE.match(self.text, start + 1).end()

    def _finite(self, text: str) -> float:
        self.floats += 1
        number = float(text)
        if not math.isfinite(number):
            raise ValueError(f"{text[:40]} is too large for a number")
        return number


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Two readers would see two different events where a member is given twice, so nobody may."""
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("an object has a member twice")
    return members


def _content(value: dict[str, Any], occurred_at: str) -> dict[str, Any]:
    """What is compared, stored and answered: no `received_at`, one form for times, and nothing that is empty."""
    content = {
        "schema": SCHEMA,
        "event_id": value["event_id"],
        "occurred_at": occurred_at,
        "source": _filled(value["source"]),
        "type": value["type"],
    }
    context = _filled(value.get("context") or {})
    if actor := _filled(context.pop("actor", {})):
        context["actor"] = actor
    if context:
        content["context"] = context
    if data := value.get("data"):
        content["data"] = data
    if evidence := value.get("evidence"):
        content["evidence"] = [_filled(item) for item in evidence]
    return content


def _filled(members: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in members.items() if value}


def _canonical(content: dict[str, Any], has_float: bool) -> str:
    """As `canonical_json`, which is slow because it looks at each value: most events are plainly plain.

    ASCII has no half surrogates and no keys beyond the BMP, and few brackets cannot nest deeply.
    """
    text = canonical_text(content)
    if not has_float and text.isascii() and text.count("{") + text.count("[") <= DEPTH_MAX:
        return text
    return canonical_json(content)


def _check_knowledge(event_type: str, data: dict[str, Any], content: dict[str, Any]) -> None:
    project = content.get("context", {}).get("project", "")
    if not project or project.isspace():
        raise Invalid(f"context.project: is required for {event_type}")
    model = catalogue.KNOWLEDGE_TYPES.get(event_type)
    if model is None:
        return
    try:
        model.model_validate(data)
    except ValidationError as error:
        raise Invalid(f"data.{catalogue.first_error(error)}") from None
    if event_type == "knowledge.disproved" and "evidence" not in content:
        raise Invalid("evidence: is required for knowledge.disproved")


def _subject(event_type: str, data: dict[str, Any]) -> str:
    """What the history of an item is searched by. A text that the store cannot hold names nothing."""
    name = "knowledge_id" if event_type.startswith(catalogue.KNOWLEDGE_PREFIX) else "operation_id"
    value = data.get(name)
    return value if _is_id(value) else ""


def _is_id(value: Any) -> TypeGuard[str]:
    return isinstance(value, str) and 0 < len(value) <= ID_CHARS_MAX and "\0" not in value and not value.isspace()


def _sequence(data: dict[str, Any]) -> int | None:
    number = data.get("sequence")
    if isinstance(number, float) and number.is_integer():
        number = int(number)  # 1.0 is the same content as 1, so it must be the same place
    if type(number) is not int or not 1 <= number <= SEQUENCE_MAX:
        return None
    return number


def _parents(context: dict[str, Any], data: dict[str, Any]) -> list[str]:
    """The event's causes, each once, in a fixed order."""
    parent = context.get("parent_event_id")
    causes = data.get("caused_by")
    named = [parent] if parent else []
    if not causes:
        return named
    if not isinstance(causes, list) or len(causes) > PARENTS_MAX or not all(map(_is_id, causes)):
        return [*named, MALFORMED]
    return list(dict.fromkeys(named + causes)) if len(causes) > 1 or named else causes

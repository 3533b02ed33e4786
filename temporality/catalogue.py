"""The known event types: what their `data` holds, and which events the projection must not interpret.

One pydantic model per type and major version. Members that a model does not name are kept and never looked at. A later
major version of a type is written `<type>.v2`. Changes within a major version only add (SPEC R3).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from temporality.contracts import ID_CHARS_MAX

KNOWLEDGE_PREFIX: Final = "knowledge."
PROJECT_PREFIXES: Final = ("knowledge.", "hint.")  # types that mean nothing outside of a project
NOTE_BYTES_MAX: Final = 2000  # of a reconciliation
MAJOR_VERSION = re.compile(r"(.+)\.v([0-9]{1,9})", re.DOTALL)

Id = Annotated[str, StringConstraints(min_length=1, max_length=ID_CHARS_MAX, pattern=r"^[^\x00]*[^\s\x00][^\x00]*$")]
Said = Annotated[str, StringConstraints(min_length=1, pattern=r"\S")]
Relation = Literal["supports", "contradicts", "derived_from", "depends_on", "supersedes", "related_to"]


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="allow")


class RuntimeData(_Data):
    """What every event of a run may carry. `caused_by` holds event ids of the same source."""

    frame_id: Id | None = None
    parent_frame_id: Id | None = None
    sequence: int | None = Field(default=None, ge=1, description="1..n in the run, without holes")
    caused_by: list[Id] | None = None
    operation_id: Id | None = None


class Outcome(RuntimeData):
    """The end, or a step, of something: a status or an outcome in the producer's words."""

    status: str | None = None
    outcome: str | None = None
    reason: str | None = None


class ModelCall(Outcome):
    """A call of a model: references and hashes, never the prompt."""

    provider: str | None = None
    model: str | None = None
    input_ref: str | None = None
    output_ref: str | None = None
    input_hash: str | None = None
    output_hash: str | None = None
    latency_ms: int | float | None = None
    usage: dict[str, Any] | None = None


class ToolCall(Outcome):
    """A call of a tool: the hash of its arguments, never the arguments."""

    server: str | None = None
    tool: str | None = None
    arguments_hash: str | None = None
    arguments_ref: str | None = None
    result_ref: str | None = None
    attempt: int | None = None


class ToolFailed(ToolCall):
    """A failed call, and whether it had an effect. Without `effect` it counts as uncertain."""

    effect: Literal["none", "uncertain", "occurred"] | None = None


class Approval(Outcome):
    """A step of an approval. `display`, of approval.requested alone, is a redacted view of the arguments."""

    operation_id: Id
    arguments_hash: str | None = None


class Reconciled(Outcome):
    """A verdict on an unclear operation: did the effect occur? Its parent is the tool.started event."""

    operation_id: Id
    effect: Literal["none", "occurred", "unknown"]
    note: str | None = None


class Probed(Outcome):
    """A look at the other side for an unclear operation. Changes no state."""

    operation_id: Id
    verdict: str | None = None


class LateResult(RuntimeData):
    """What an attempt learnt after its operation had moved on: evidence for whoever reconciles. Changes no state."""

    operation_id: Id
    late_attempt: int | None = None
    effect: Literal["none", "uncertain", "occurred"] | None = None
    error_class: str | None = None
    result_ref: str | None = None


class RefusedEvent(Outcome):
    """A person's decision about an event that a destination refused: send it again, or never."""

    refused_event_id: Id | None = None
    refused_sequence: int | None = None
    note: str | None = None


class Message(RuntimeData):
    """Something said to a run that is under way; the text is an artifact."""

    number: int | None = Field(default=None, ge=1)
    message_ref: str | None = None


class Delegation(Outcome):
    """A run lets another agent do a task: the child is a run of its own, with events of its own."""

    child_run_id: Id | None = None
    agent: str | None = None
    depth: int | None = Field(default=None, ge=1, description="how many runs are above the child")


class Compacted(RuntimeData):
    """From a turn on, results and arguments of older turns are told to the model as references; nothing is lost."""

    turn: int | None = Field(default=None, ge=1)
    short_before_turn: int | None = Field(default=None, ge=1)


class Held(Outcome):
    """A legal hold was placed or released, with the reason. Changes no state."""

    hold_id: Id | None = None
    scope: str | None = None
    target: str | None = None


class Purged(Outcome):
    """The receipt of a purge, or a change of the rules (days by class). Changes no state."""

    deleted: dict[str, Any] | None = None
    days: dict[str, Any] | None = None


class Knowledge(_Data):
    """A statement about one knowledge item of the project."""

    knowledge_id: Id


class Proposed(Knowledge):
    """The item begins. The same proposition again changes nothing; another one under the same id is an error."""

    proposition: Said


class Reasoned(Knowledge):
    """Ends the item; `disproved` also needs evidence in the envelope."""

    reason: Said


class Linked(Knowledge):
    """How the item relates to another one."""

    target_id: Id
    relation: Relation


class Promoted(Knowledge):
    """The item is to hold beyond its project."""

    scope_kind: Literal["org_unit", "organization"]
    reason: Said


KNOWLEDGE_TYPES: Mapping[str, type[Knowledge]] = {
    "knowledge.proposed": Proposed,
    "knowledge.used": Knowledge,
    "knowledge.confirmed": Knowledge,
    "knowledge.challenged": Knowledge,
    "knowledge.corrected": Knowledge,
    "knowledge.invalidated": Reasoned,
    "knowledge.superseded": Knowledge,
    "knowledge.disproved": Reasoned,
    "knowledge.linked": Linked,
    "knowledge.promoted": Promoted,
}


def _family(
    prefix: str, model: type[RuntimeData], *steps: str, **others: type[RuntimeData]
) -> dict[str, type[RuntimeData]]:
    return {f"{prefix}.{step}": model for step in steps} | {f"{prefix}.{step}": kind for step, kind in others.items()}


RUNTIME_TYPES: Mapping[str, type[RuntimeData]] = {
    **_family("run", Outcome, "started", "completed", "failed", "cancelled", "resumed", message=Message),
    **_family("turn", Outcome, "started", "completed"),
    **_family("model", ModelCall, "started", "completed", "failed"),
    **_family("tool", ToolCall, "started", "completed", "blocked", failed=ToolFailed),
    **_family("mcp.call", ToolCall, "started", "completed", "blocked", failed=ToolFailed),
    **_family("sandbox", Outcome, "created", "destroyed"),
    **_family("approval", Approval, "requested", "granted", "rejected", "timed_out", "voted"),
    **_family("delegation", Delegation, "started", "completed", "failed"),
    **_family("operation", Outcome, reconciled=Reconciled, probed=Probed, late_result=LateResult),
    **_family("event", RefusedEvent, "replay_requested", "given_up"),
    **_family("policy", RuntimeData, "limit"),
    **_family("evidence", RuntimeData, "observed"),
    **_family("agent", RuntimeData, "summary"),
    **_family("context", RuntimeData, "created", compacted=Compacted),
    **_family("memory", RuntimeData, "read", "write"),
    **_family("hold", Held, "placed", "released"),
    **_family("retention", Purged, "changed", "purged"),
}
TYPES: Mapping[str, type[_Data]] = {**RUNTIME_TYPES, **KNOWLEDGE_TYPES}


def quarantine_reason(event_type: str, data: dict[str, Any]) -> str:
    """Why the projection must not interpret this event; empty if it may. Types that nobody knows mean nothing to it."""
    model = TYPES.get(event_type)
    if model is not None:
        is_plain = model is not Reconciled and model.__pydantic_validator__.isinstance_python(data)
        return "" if is_plain else _misfit(model, event_type, data)
    if event_type.startswith(KNOWLEDGE_PREFIX):
        return "this knowledge.* type is not known"
    later = MAJOR_VERSION.fullmatch(event_type)
    if later and later[1] in TYPES:
        return f"version {later[2]} of {later[1]} is not known"
    return ""


def _misfit(model: type[_Data], event_type: str, data: dict[str, Any]) -> str:
    try:
        read = model.model_validate(data)
    except ValidationError as error:
        return f"data does not fit {event_type}: {first_error(error)}"
    if isinstance(read, Reconciled) and len((read.note or "").encode("utf-8", "surrogatepass")) > NOTE_BYTES_MAX:
        return f"data does not fit {event_type}: note: is longer than {NOTE_BYTES_MAX} bytes"
    return ""


def first_error(error: ValidationError) -> str:
    """`where: what` of the first thing that is wrong, without the value: it may be long or secret."""
    first = error.errors(include_input=False, include_url=False, include_context=False)[0]
    where = ".".join(str(part)[:80] for part in first["loc"])
    return f"{where}: {_sentence(first['type'], first['msg'])}"


def _sentence(kind: str, message: str) -> str:
    match kind:
        case "string_pattern_mismatch" | "string_too_short":
            return "must not be blank or contain a NUL character"
        case "extra_forbidden":
            return "is not a member of the envelope; own members belong into data"
        case "missing":
            return "is required"
    return message.removeprefix("Value error, ")


def schemas() -> dict[str, dict[str, Any]]:
    """JSON Schema of the `data` of each type, in its first major version."""
    return {f"{name}/1": model.model_json_schema() for name, model in sorted(TYPES.items())}


@cache
def fingerprint() -> str:
    """Changes whenever a type is added or read differently: what is in quarantine must then be judged anew."""
    return hashlib.sha256(json.dumps(schemas(), sort_keys=True).encode()).hexdigest()

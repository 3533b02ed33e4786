"""The event catalogue as documents, and what may change in them within a major version: additions alone (SPEC R3)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from temporality import catalogue
from temporality.contracts import EVENTS_PATH, EventEnvelope

ENVELOPE = "envelope-1.json"
ASYNCAPI = "asyncapi.json"
UPPER_BOUNDS = frozenset({"maxLength", "maximum", "exclusiveMaximum", "maxItems", "maxProperties"})
LOWER_BOUNDS = frozenset({"minLength", "minimum", "exclusiveMinimum", "minItems", "minProperties"})
LOOSER_WITHOUT = UPPER_BOUNDS | LOWER_BOUNDS | {"type", "pattern", "format", "multipleOf", "uniqueItems"}
ANNOTATIONS = frozenset({"title", "description", "default", "examples", "$comment", "$defs", "$schema", "$id"})
WALKED = frozenset({"required", "properties", "items", "additionalProperties", "anyOf"})

Schema = Mapping[str, Any]


def documents() -> dict[str, str]:
    """File name -> text, the same on every machine."""
    found = {f"{name.replace('/', '-')}.json": schema for name, schema in catalogue.schemas().items()}
    found[ENVELOPE] = EventEnvelope.model_json_schema(by_alias=True)
    found[ASYNCAPI] = _asyncapi()
    return {name: json.dumps(schema, indent=2, sort_keys=True) + "\n" for name, schema in found.items()}


def _asyncapi() -> dict[str, Any]:
    """One channel, the ingest endpoint, and one message per type: the envelope with that type's data."""
    messages = {name: {"name": name, "payload": _payload(name)} for name in catalogue.TYPES}
    references = {name: {"$ref": f"#/components/messages/{name}"} for name in sorted(messages)}
    return {
        "asyncapi": "3.0.0",
        "info": {"title": "Temporality events", "version": "1.0.0"},
        "channels": {"events": {"address": EVENTS_PATH, "messages": references}},
        "operations": {"ingest": {"action": "receive", "channel": {"$ref": "#/channels/events"}}},
        "components": {"messages": messages},
    }


def _payload(name: str) -> dict[str, Any]:
    data = {"properties": {"type": {"const": name}, "data": {"$ref": f"{name}-1.json"}}}
    return {"allOf": [{"$ref": ENVELOPE}, data]}


def breaking_changes(old: Schema, new: Schema) -> list[str]:
    """What a producer or reader of the old document would stumble over, one sentence each.

    Members may be added if they are optional, and bounds may be looser; any other change is refused, known or not.
    """
    return list(_breaking(old, new, "$", old, new))


def _breaking(old: Any, new: Any, path: str, old_root: Schema, new_root: Schema) -> Iterator[str]:
    old, new = _resolved(old, old_root), _resolved(new, new_root)
    if new is False and old is not False:
        yield f"{path}: nothing is allowed any more"
    if not isinstance(new, Mapping) or old is False:
        return
    old = old if isinstance(old, Mapping) else {}  # `true` allows everything, as no schema does
    for name in sorted((old.keys() | new.keys()) - ANNOTATIONS - WALKED):
        if not _is_looser(name, old, new):
            yield f"{path}: {name} is narrower than it was"
    for name in sorted(set(new.get("required", [])) - set(old.get("required", []))):
        yield f"{path}.{name} is required now"
    for name, member in old.get("properties", {}).items():
        if name not in new.get("properties", {}):
            yield f"{path}.{name} is gone"
        else:
            yield from _breaking(member, new["properties"][name], f"{path}.{name}", old_root, new_root)
    for name, mark in (("items", "[]"), ("additionalProperties", ".*")):
        yield from _breaking(old.get(name, True), new.get(name, True), f"{path}{mark}", old_root, new_root)
    yield from _lost_choices(old, new, path, old_root, new_root)


def _is_looser(name: str, old: Schema, new: Schema) -> bool:
    """Whether a keyword allows at least what it did."""
    if name in ("enum", "const"):
        return _values(new) is None or _is_part(_values(old), _values(new))
    if name not in new:
        return name in LOOSER_WITHOUT
    if name == "type":
        return _is_part(_types(old), _types(new))
    if name not in old:
        return False
    if name in UPPER_BOUNDS:
        return bool(old[name] <= new[name])
    if name in LOWER_BOUNDS:
        return bool(old[name] >= new[name])
    return _is_grown(old[name], new[name])


def _values(schema: Schema) -> list[Any] | None:
    return [schema["const"]] if "const" in schema else schema.get("enum")


def _types(schema: Schema) -> list[str] | None:
    named = schema.get("type")
    return [named] if isinstance(named, str) else named


def _is_part(old: list[Any] | None, new: list[Any] | None) -> bool:
    """More of the same list is an addition; where there was no list, everything was allowed."""
    allowed = new or []
    return old is not None and all(one in allowed or (one == "integer" and "number" in allowed) for one in old)


def _is_grown(old: Any, new: Any) -> bool:
    """The same, or an object with more members: what is no JSON schema (AsyncAPI), and keywords not known here."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return all(name in new and _is_grown(member, new[name]) for name, member in old.items())
    return bool(old == new)


def _lost_choices(old: Schema, new: Schema, path: str, old_root: Schema, new_root: Schema) -> Iterator[str]:
    if "anyOf" not in new:
        return
    for choice in old.get("anyOf", [{name: member for name, member in old.items() if name not in ANNOTATIONS}]):
        if all(any(_breaking(choice, other, path, old_root, new_root)) for other in new["anyOf"]):
            yield f"{path}: {json.dumps(choice, sort_keys=True)} is not allowed any more"


def _resolved(schema: Any, root: Schema) -> Any:
    while isinstance(schema, Mapping) and "$ref" in schema and schema["$ref"].startswith("#/$defs/"):
        schema = root["$defs"][schema["$ref"].removeprefix("#/$defs/")]
    return schema

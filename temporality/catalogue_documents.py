"""The event catalogue as documents, and what may change in them within a major version: additions alone (SPEC R3)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from temporality import catalogue
from temporality.contracts import EVENTS_PATH, EventEnvelope

ENVELOPE = "envelope-1.json"
ASYNCAPI = "asyncapi.json"
CONSTRAINTS = ("type", "enum", "const", "pattern", "minLength", "maxLength", "minimum", "format")

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

    Members may be added if they are optional; nothing may vanish, become required, or be narrowed.
    """
    return list(_breaking(old, new, "$", old, new))


def _breaking(old: Any, new: Any, path: str, old_root: Schema, new_root: Schema) -> Iterator[str]:
    old, new = _resolved(old, old_root), _resolved(new, new_root)
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        return
    for name in CONSTRAINTS:
        if name in new and old.get(name) != new[name] and not _wider(old.get(name), new[name]):
            yield f"{path}: {name} is narrower than it was"
    for name in set(new.get("required", [])) - set(old.get("required", [])):
        yield f"{path}.{name} is required now"
    for name, member in old.get("properties", {}).items():
        if name not in new.get("properties", {}):
            yield f"{path}.{name} is gone"
        else:
            yield from _breaking(member, new["properties"][name], f"{path}.{name}", old_root, new_root)
    yield from _breaking(old.get("items"), new.get("items"), f"{path}[]", old_root, new_root)
    yield from _lost_choices(old, new, path, old_root, new_root)


def _lost_choices(old: Schema, new: Schema, path: str, old_root: Schema, new_root: Schema) -> Iterator[str]:
    choices = [_resolved(choice, new_root) for choice in new.get("anyOf", [])]
    for choice in old.get("anyOf", []):
        resolved = _resolved(choice, old_root)
        if choices and not any(not list(_breaking(resolved, other, path, old_root, new_root)) for other in choices):
            yield f"{path}: {json.dumps(choice, sort_keys=True)} is not allowed any more"


def _wider(old: Any, new: Any) -> bool:
    """More of the same list is an addition."""
    return isinstance(old, list) and isinstance(new, list) and set(old) <= set(new)


def _resolved(schema: Any, root: Schema) -> Any:
    while isinstance(schema, Mapping) and "$ref" in schema and schema["$ref"].startswith("#/$defs/"):
        schema = root["$defs"][schema["$ref"].removeprefix("#/$defs/")]
    return schema

"""R3. The committed event catalogue is what the code says, and within a major version it only grows."""

from __future__ import annotations

import copy
import json
import re
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from temporality.catalogue import TYPES
from temporality.catalogue_documents import breaking_changes, documents
from temporality.envelope import decode_batch, read_event

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "events"


@pytest.mark.parametrize("name", sorted(documents()))
def test_the_committed_document_allows_only_additions(name: str) -> None:
    """After an addition: `manage.py event_catalogue`, and commit docs/events."""
    committed = json.loads((FOLDER / name).read_text())
    current = json.loads(documents()[name])
    assert breaking_changes(committed, current) == []
    assert committed == current, "run manage.py event_catalogue"


def test_no_document_is_lost() -> None:
    assert {path.name for path in FOLDER.glob("*.json")} <= set(documents())


def test_the_command_writes_what_is_committed(tmp_path: Path) -> None:
    call_command("event_catalogue", folder=tmp_path, stdout=StringIO())
    written = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert written == {path.name: path.read_text() for path in FOLDER.glob("*.json")}


OTHERS = {
    "approval.reminder",
    "run.ended",
    "operation.uncertain",
    "run.json",
}  # messages to people and applications; a file
FAMILIES = "|".join(sorted({name.rpartition(".")[0] for name in TYPES} - {"memory"}))  # cgroups have files of that name
PRODUCERS = ("runs", "approvals", "outbox")


def test_every_type_that_the_kernel_tells_is_in_the_catalogue() -> None:
    root = FOLDER.parents[1]
    texts = [
        path.read_text() for app in PRODUCERS for kind in ("py", "sql") for path in (root / app).rglob(f"*.{kind}")
    ]
    told = {name for text in texts for name in re.findall(rf"""["']((?:{FAMILIES})\.[a-z_]+)["']""", text)} - OTHERS
    assert len(told) > 15
    assert told - set(TYPES) == set()


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("run.started-1.json", '{"properties": {"former": {}}}', r"run.started-1.json: \$.former is gone"),
        ("run.paused-1.json", "{}", "run.paused-1.json is gone"),
    ],
)
def test_the_command_refuses_to_take_anything_away(tmp_path: Path, name: str, text: str, sentence: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(CommandError, match=sentence):
        call_command("event_catalogue", folder=tmp_path)
    assert (tmp_path / name).read_text() == text


def changed(schema: dict[str, Any], *path: str, **members: Any) -> dict[str, Any]:
    copied = copy.deepcopy(schema)
    place = copied
    for name in path:
        place = place[name]
    place.update(members)
    return copied


OLD = {
    "type": "object",
    "required": ["a"],
    "properties": {"a": {"type": "string", "maxLength": 9}, "b": {"enum": ["x", "y"]}},
}


@pytest.mark.parametrize(
    ("new", "sentence"),
    [
        (changed(OLD, required=["a", "b"]), "$.b is required now"),
        (changed(OLD, properties={"b": OLD["properties"]["b"]}), "$.a is gone"),  # type: ignore[index]
        (changed(OLD, "properties", "a", type="integer"), "$.a: type is narrower than it was"),
        (changed(OLD, "properties", "b", enum=["x"]), "$.b: enum is narrower than it was"),
        (changed(OLD, "properties", "a", maxLength=5), "$.a: maxLength is narrower than it was"),
    ],
)
def test_a_breaking_change_is_found(new: dict[str, Any], sentence: str) -> None:
    assert sentence in breaking_changes(OLD, new)


NESTED = {"type": "object", "properties": {"n": {"type": "array", "items": {"anyOf": [OLD, {"type": "null"}]}}}}
NARROWED = changed(OLD, "properties", "a", maxLength=5)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (OLD, OLD | {"additionalProperties": False}),
        (OLD, OLD | {"additionalProperties": {"type": "string"}}),
        ({"type": "array"}, {"type": "array", "items": {"type": "string"}}),
        ({"type": "array", "items": {"type": "string"}}, {"type": "array", "items": {"type": "integer"}}),
        ({"type": "array", "items": {}}, {"type": "array", "items": False}),
        ({"type": "integer"}, {"type": "integer", "maximum": 5}),
        ({"maximum": 6}, {"maximum": 5}),
        ({"minimum": 1}, {"minimum": 2}),
        ({"type": "array"}, {"type": "array", "maxItems": 5}),
        ({"type": "array"}, {"type": "array", "uniqueItems": True}),
        ({"type": "string"}, {"type": "string", "not": {"const": "x"}}),
        ({"enum": ["x", "y"]}, {"const": "x"}),
        ({}, {"anyOf": [{"type": "string"}]}),
        ({"properties": {"a": True}}, {"properties": {"a": {"type": "string"}}}),
        (NESTED, changed(NESTED, "properties", "n", items={"anyOf": [NARROWED, {"type": "null"}]})),
        (NESTED, changed(NESTED, "properties", "n", items={"anyOf": [OLD]})),
        ({"channels": {"a": {"address": "/x"}}}, {"channels": {"a": {"address": "/y"}}}),
        ({"channels": {"a": {}}}, {"channels": {}}),
        ({"channels": {"a": {}}}, {}),
    ],
)
def test_whatever_may_refuse_what_was_valid_is_a_breaking_change(old: dict[str, Any], new: dict[str, Any]) -> None:
    assert breaking_changes(old, new) != []
    assert breaking_changes(old, old) == breaking_changes(new, new) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (OLD | {"additionalProperties": False}, OLD),
        ({"maximum": 5, "minItems": 2}, {"maximum": 6, "minItems": 1}),
        ({"maxLength": 5, "pattern": "x", "const": "x"}, {"enum": ["x", "y"]}),
        ({"type": "integer"}, {"type": ["number", "null"]}),
        ({"anyOf": [OLD]}, {"anyOf": [{"type": "null"}, OLD]}),
        ({"type": "string"}, {"anyOf": [{"type": "null"}, {"type": "string", "maxLength": 5}, {"type": "string"}]}),
        ({"channels": {"a": {}}}, {"channels": {"a": {}, "b": {}}}),
        ({"title": "A"}, {"title": "B", "description": "more"}),
    ],
)
def test_a_looser_bound_is_no_breaking_change(old: dict[str, Any], new: dict[str, Any]) -> None:
    assert breaking_changes(old, new) == []


@pytest.mark.parametrize(
    "new", [changed(OLD, "properties", c={"type": "integer"}), changed(OLD, "properties", "b", enum=["x", "y", "z"])]
)
def test_an_addition_is_no_breaking_change(new: dict[str, Any]) -> None:
    assert breaking_changes(OLD, new) == []


@pytest.mark.parametrize("kind", sorted(TYPES))
def test_unknown_members_of_data_survive(kind: str) -> None:
    extra = {"of_tomorrow": {"n": [1, None, 10**30]}}
    data = {
        "operation_id": "o", "effect": "none", "knowledge_id": "k", "proposition": "p", "reason": "r", "target_id": "t",
        "relation": "supports", "scope_kind": "organization",
    }  # fmt: skip
    sent = {
        "schema": "temporality.event/1", "event_id": "e", "occurred_at": "2025-03-01T10:00:00Z", "type": kind,
        "source": {"id": "s", "integration": "i"}, "context": {"project": "p"}, "data": data | extra,
        "evidence": [{"ref": "x"}],
    }  # fmt: skip
    stored = read_event(decode_batch(json.dumps({"events": [sent]}).encode())[0])
    assert stored.quarantine == ""
    assert json.loads(stored.content)["data"] == data | extra

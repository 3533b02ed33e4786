"""What a look-up answers, as a verdict; and how its arguments are filled in."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from pydantic import ValidationError

from runs.boundary.contracts import NotSent, ProbeVerdict
from runs.boundary.effects.mcp import ProbeDeclaration, verdict
from runs.boundary.mcp_sessions import Answer
from runs.boundary.placeholders import filled, values_of
from tests.mcp_servers.running import dispatch

OPERATION = UUID("6f1c2f0e-1111-5222-8333-444455556666")
CALL = dispatch({}, "tool", {"repo": "/r", "n": 3, "deep": {"x": ["y"]}, "evil": "{operation_id}"}, operation=OPERATION)
TRAILER = f"Operation-Id: {OPERATION}"
LOOK_UP = {
    "tool": "log",
    "found_when": {"regex": r"(?m)^\s*Operation-Id: {operation_id}\s*$"},
    "covers": {"entry": "(?m)^Commit: ", "entries_max": 3},
}


def judged(text: str, declared: dict[str, Any] | None = None, **result: Any) -> ProbeVerdict:
    answer = Answer({"content": [{"type": "text", "text": text}], **result})
    return verdict(ProbeDeclaration.model_validate(declared or LOOK_UP), answer, CALL).verdict


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"Commit: a\nMessage: x\n\n{TRAILER}\n", ProbeVerdict.ONE),
        ("Commit: a\nMessage: x\n", ProbeVerdict.ABSENT),
        ("", ProbeVerdict.ABSENT),
        (f"Commit: a\n{TRAILER}\nCommit: b\n{TRAILER}\n", ProbeVerdict.MANY),
        (f"Commit: a\nMessage: as said in {TRAILER} before\n", ProbeVerdict.ABSENT),
        ("Commit: a\nCommit: b\nCommit: c\n", ProbeVerdict.CANNOT_TELL),
        (f"Commit: a\n{TRAILER}\nCommit: b\nCommit: c\n", ProbeVerdict.ONE),
        ("a\0b", ProbeVerdict.CANNOT_TELL),
        ("x" * 5_000_000, ProbeVerdict.CANNOT_TELL),
    ],
)
def test_the_verdict_of_a_look_up(text: str, expected: ProbeVerdict) -> None:
    assert judged(text) is expected


def test_an_error_of_the_look_up_proves_nothing_unless_declared() -> None:
    assert judged("not found", isError=True) is ProbeVerdict.CANNOT_TELL
    assert judged("not found", {**LOOK_UP, "error_means": "absent"}, isError=True) is ProbeVerdict.ABSENT


def test_more_than_one_can_be_declared_normal() -> None:
    declared = {"tool": "find", "found_when": {"contains": "{operation_id}"}, "many_when_count_over": 2}
    assert judged(f"{OPERATION} {OPERATION}", declared) is ProbeVerdict.ONE


def test_what_was_found_is_the_result() -> None:
    answer = Answer({"content": [{"type": "text", "text": f"Commit: abc\n\n{TRAILER}\n"}]})
    found = verdict(ProbeDeclaration.model_validate(LOOK_UP), answer, CALL).result
    assert found is not None
    assert "Commit: abc" in found.text


def test_placeholders_are_filled_once_and_keep_their_type() -> None:
    template = {"a": "{argument:repo}", "n": "{argument:n}", "list": ["{argument:deep.x}"], "e": "<{argument:evil}>"}
    assert filled(template, values_of(CALL)) == {"a": "/r", "n": 3, "list": [["y"]], "e": "<{operation_id}>"}
    assert filled("id {operation_id} {unknown}", values_of(CALL)) == f"id {OPERATION} {{unknown}}"
    with pytest.raises(NotSent, match="missing"):
        filled("{argument:missing}", values_of(CALL))


@pytest.mark.parametrize(
    "declared",
    [
        {**LOOK_UP, "found_when": {}},
        {**LOOK_UP, "found_when": {"regex": "("}},
        {**LOOK_UP, "found_when": {"regex": "a", "contains": "b"}},
        {**LOOK_UP, "many_when_count_over": 0},
        {**LOOK_UP, "covers": {"entry": "(", "entries_max": 1}},
        {**LOOK_UP, "error_means": "fine"},
        {**LOOK_UP, "tool": ""},
        {**LOOK_UP, "spelled_wrong": 1},
    ],
)
def test_a_wrong_declaration_is_refused(declared: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ProbeDeclaration.model_validate(declared)

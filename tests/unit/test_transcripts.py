"""The conversation put together from operations: each call has exactly one result, whatever became of it (C10)."""

from __future__ import annotations

import json
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel_project.primitives.canonical import sha256_hex
from runs.boundary.models.contracts import AssistantMessage, ToolMessage
from runs.boundary.models.history import make_safe
from runs.boundary.results import EMPTY
from runs.loop import transcripts
from runs.models import Operation

TOOL_STATES = list(Operation.State.values)
VERDICTS = list(Operation.Verdict.values)
labels = st.sampled_from(["", "dup", "call_0", "x" * 300])
texts = st.sampled_from(["", " ", "fine", "\n", "{braces}", "🙅", "\u202e"])


def kept(bodies: dict[str, bytes], value: dict) -> str:
    data = json.dumps(value).encode()
    bodies[sha256_hex(data)] = data
    return sha256_hex(data)


@st.composite
def tool_call(draw, bodies, turn, position):
    state = draw(st.sampled_from(TOOL_STATES))
    row = Operation(id=uuid4(), turn=turn, position=position, name="tool", kind="python", state=state)
    row.error_message, row.error_class = draw(texts), "some_error"
    if state == "reconciled":
        row.verdict = draw(st.sampled_from(VERDICTS))
    if state in ("succeeded", "tool_error"):
        record = {"text": draw(texts) or EMPTY, "is_error": state == "tool_error"}
        row.result_digest = kept(bodies, record)
    return row


@st.composite
def model_turn(draw, bodies, turn):
    """A model call as it may have ended, and the rows of what it wanted: all of them, or none after a cancel."""
    state = draw(st.sampled_from(["succeeded", "failed"]))
    row = Operation(id=uuid4(), turn=turn, position=0, name="m", kind="model", state=state)
    if row.state == "failed":
        return [row]
    count = draw(st.integers(0, 3))
    raw = st.sampled_from(["{}", "[", "null"])
    wanted = [{"id": draw(labels), "name": "tool", "arguments": draw(raw)} for _ in range(count)]
    reason = draw(st.sampled_from(["stop", "tool_calls", "length", "error", "unknown"]))
    row.usage = {"finish_reason": reason}
    row.result_digest = kept(bodies, {"text": draw(texts), "calls": wanted})
    executed = reason in ("stop", "tool_calls") and draw(st.booleans())
    return [row, *[draw(tool_call(bodies, turn, place)) for place in range(1, count + 1) if executed]]


@st.composite
def histories(draw):
    bodies: dict[str, bytes] = {}
    turns = [draw(model_turn(bodies, turn)) for turn in range(1, draw(st.integers(0, 3)) + 1)]
    return [row for turn in turns for row in turn], bodies


@settings(deadline=None)
@given(histories(), st.sampled_from(["", "turns"]))
def test_every_call_has_exactly_one_result_after_it_and_every_result_a_call(history, limit):
    rows, bodies = history
    told = transcripts.compose("go", rows, bodies, limit)
    open_calls: list[str] = []
    for message in told:
        if isinstance(message, ToolMessage):
            assert message.call_id == open_calls.pop(0)
        else:
            assert not open_calls
        if isinstance(message, AssistantMessage):
            open_calls = [call.id for call in message.calls]
    assert not open_calls
    safe = make_safe(told)  # what every provider would refuse raises here
    assert all(message.text.strip() for message in safe.messages if not isinstance(message, AssistantMessage))


@pytest.mark.parametrize("state", TOOL_STATES)
def test_each_state_of_a_call_has_words_for_the_model(state):
    row = Operation(id=uuid4(), state=state, verdict="unknown", error_class="x", error_message="because {braces}")
    body = json.dumps({"text": "fine", "is_error": False}).encode()
    text, is_error = transcripts.result_text(row, body if state in ("succeeded", "tool_error") else b"")
    assert text.strip()
    assert is_error == (state not in ("succeeded", "tool_error"))


def test_a_rejection_keeps_the_persons_words_as_data():
    row = Operation(id=uuid4(), state="rejected", error_message='{"role":"system"} wrong customer 🙅')
    assert '{"role":"system"} wrong customer 🙅' in transcripts.result_text(row, b"")[0]

"""Streamed answers become the documents that would have come unstreamed; half a stream becomes none."""

from __future__ import annotations

import pytest

from runs.boundary.models.streams import AnthropicStream, OpenAiStream, event_of


def chunk(finish=None, **delta):
    return {"id": "c1", "model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def piece(index, arguments, name=None, call_id=None):
    return {"tool_calls": [{"index": index, "id": call_id, "function": {"name": name, "arguments": arguments}}]}


OPENAI = [
    chunk(role="assistant", content="Hel"), chunk(content="lo"),
    chunk(**piece(0, '{"a"', "note", "k1")), chunk(**piece(1, "{}", "look", "k2")), chunk(**piece(0, ": 1}")),
    chunk("tool_calls"), {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}},
]  # fmt: skip
ANTHROPIC = [
    {"type": "message_start", "message": {"id": "m1", "model": "m", "usage": {"input_tokens": 3, "output_tokens": 1}}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "ping"},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hel"}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "lo"}},
    {"type": "content_block_start", "index": 1,
     "content_block": {"type": "tool_use", "id": "k", "name": "n", "input": {}}},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": '{"a":'}},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": " 1}"}},
    {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 9}},
    {"type": "message_stop"},
]  # fmt: skip


def test_openai_chunks_become_one_completion():
    stream = OpenAiStream()
    assert "".join(stream.feed(one) for one in OPENAI) == "Hello"
    document = stream.document()
    [choice] = document["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("Hello", "tool_calls")
    calls = [(call["id"], call["function"]) for call in choice["message"]["tool_calls"]]
    assert calls == [
        ("k1", {"name": "note", "arguments": '{"a": 1}'}), ("k2", {"name": "look", "arguments": "{}"}),
    ]  # fmt: skip
    assert document["usage"] == {"prompt_tokens": 3, "completion_tokens": 4}


def test_anthropic_events_become_one_message():
    stream = AnthropicStream()
    assert "".join(stream.feed(one) for one in ANTHROPIC) == "Hello"
    document = stream.document()
    text, call = document["content"]
    assert (text["text"], call["name"], call["input"]) == ("Hello", "n", {"a": 1})
    assert (document["stop_reason"], document["usage"]) == ("tool_use", {"input_tokens": 3, "output_tokens": 9})


@pytest.mark.parametrize(("kind", "events"), [(OpenAiStream, OPENAI[:5]), (AnthropicStream, ANTHROPIC[:-1])])
def test_half_a_stream_is_no_answer(kind, events):
    stream = kind()
    for one in events:
        stream.feed(one)
    assert stream.document() is None


@pytest.mark.parametrize("kind", [OpenAiStream, AnthropicStream])
def test_an_error_on_the_way_is_the_answer(kind):
    stream = kind()
    stream.feed({"type": "error", "error": {"type": "overloaded_error", "message": "busy"}})
    assert stream.document() == {"error": {"type": "overloaded_error", "message": "busy"}}


@pytest.mark.parametrize("kind", [OpenAiStream, AnthropicStream])
@pytest.mark.parametrize(
    "event",
    [
        {}, {"choices": "x"}, {"choices": [None]}, {"choices": [{"delta": "x"}]},
        {"choices": [{"delta": {"tool_calls": [None, {"index": -1}, {"index": "x"}, {"index": 10**9}]}}]},
        {"type": "content_block_start", "index": 10**9, "content_block": {}}, {"type": "message_start", "message": 3},
        {"type": "content_block_delta", "index": 7, "delta": {"text": "x"}}, {"type": "message_delta", "delta": []},
    ],
)  # fmt: skip
def test_nonsense_adds_nothing(kind, event):
    stream = kind()
    assert stream.feed(event) == ""
    assert stream.document() is None


@pytest.mark.parametrize(
    "line", [b"", b"event: x", b": comment", b"data: [DONE]", b"data: {", b"data: 3", b"data:\xff"]
)
def test_lines_without_an_event(line):
    assert event_of(line) is None

"""C10. Whatever is cancelled, denied or unclear: at every model request each call has exactly one result.

The random interleavings are in tests/unit/test_transcripts.py; here is the way through the whole kernel.
"""

from __future__ import annotations

import threading

import pytest

from outbox.contracts import Actor
from runs.boundary.models.contracts import AssistantMessage, ToolMessage
from runs.boundary.models.history import make_safe
from runs.loop import endings, transcripts
from tests.kernel import (
    begin,
    call,
    calls,
    decide,
    ended,
    hangs,
    make_project,
    make_tool,
    read,
    said,
    says,
    states,
    waits,
)

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("carrier")]


@pytest.fixture
def gate():
    opened = threading.Event()
    yield opened
    opened.set()


@pytest.fixture
def project(gate):
    project = make_project()
    make_tool(project, "slow", lambda dispatch, text: gate.wait(30) and f"slow {text}", effect="read")
    make_tool(project, "gated", lambda dispatch, text: f"gated {text}")
    return project


BOTH = calls(call("slow", text="a"), call("gated", text="b"))


def pairs(run) -> tuple[list[str], list[str]]:
    """The calls and the results that the model would be asked with next."""
    told = transcripts.messages(read(run), before_turn=100)
    make_safe(told)
    asked = [one.id for message in told if isinstance(message, AssistantMessage) for one in message.calls]
    return asked, [message.call_id for message in told if isinstance(message, ToolMessage)]


def test_a_denial_while_the_other_call_runs(project, gate):
    run = begin([BOTH, says("{result:0.1} | {result:0.2}")], ["slow", "gated"], project=project)
    _, gated = waits(run, "dispatched", "awaiting_approval")
    decide(gated, "reject", "not now")
    waits(run, "dispatched", "rejected")
    gate.set()
    assert ended(run).state == "completed"
    assert said(run).startswith("slow a | Not executed: a person rejected this call.")
    asked, answered = pairs(run)
    assert asked == answered
    assert len(asked) == 2


def test_a_cancel_in_the_middle_leaves_one_result_for_each_call(project):
    make_tool(project, "hang", hangs, effect="read")
    script = [calls(call("hang", text="a"), call("gated", text="b")), says("never")]
    run = begin(script, ["hang", "gated"], project=project)
    waits(run, "dispatched", "awaiting_approval")
    endings.request_cancel(run.id, project.slug, by=Actor(id="ann", type="human"))
    assert ended(run).state == "cancelled"
    assert states(run) == [("hang", "failed"), ("gated", "withdrawn")]
    asked, answered = pairs(run)
    assert asked == answered
    assert len(asked) == 2

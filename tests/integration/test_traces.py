"""Traces: one span per step that happened, however often the workflow is replayed, and none of what was said."""

from __future__ import annotations

import sys
from collections import Counter

import pytest

from kernel_project.primitives import logs, traces
from runs.boundary.threads import in_thread
from runs.loop import temporal
from runs.loop.temporal import connect
from runs.loop.worker import make_worker
from tests.kernel import Ledger, begin, call, calls, ended, make_project, make_tool, says, writes_to

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def spans():
    memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter").InMemorySpanExporter()
    export = pytest.importorskip("opentelemetry.sdk.trace.export")
    traces.begin_with(export.SimpleSpanProcessor(memory), "test")
    yield memory
    traces.end()


async def test_replays_make_no_spans(spans, temporal_server, settings, tmp_path, monkeypatch):
    """The worker keeps no workflow in memory: it replays all of the history for each task."""
    monkeypatch.setattr(temporal, "_loop", temporal._Loop())  # a client of its own, made while traces are on
    project = await in_thread(make_project)
    tool = await in_thread(lambda: make_tool(project, "note", writes_to(Ledger(tmp_path / "ledger")), effect="read"))
    turns = [*[calls(call("note", text=f"secret words {number}")) for number in range(3)], says("done")]
    worker = make_worker(await connect(), settings.TEMPORAL_TASK_QUEUE, max_cached_workflows=0)
    async with worker:
        with logs.about(request_id="r-1"), traces.span("POST /runs"):
            run = await in_thread(lambda: begin(turns, [tool.name], project=project))
        await in_thread(lambda: ended(run))
    found = Counter(span.name for span in spans.get_finished_spans())
    assert found["RunWorkflow:AgentRun"] == 1
    assert found["RunActivity:think"] == 4
    assert found["RunActivity:perform"] == 3
    assert found["POST /runs"] == 1
    text = "".join(span.to_json() for span in spans.get_finished_spans())
    assert str(run.id) in text
    assert "secret words" not in text
    assert '"kernel.request_id": "r-1"' in text


def test_without_the_setting_nothing_is_loaded_and_nothing_happens():
    assert traces.interceptors() == []
    with traces.span("GET /nothing"):
        pass


def test_the_setting_without_its_packages_is_an_error_that_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(RuntimeError, match="extra"):
        traces.begin("http://127.0.0.1:1/v1/traces", "web")
    traces.begin("", "web")
    assert traces.interceptors() == []

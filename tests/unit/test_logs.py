"""Log lines carry the ids of what they are about, into threads and tasks, and stay one line each."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import uuid

import pytest

from kernel_project.primitives import logs, traces
from runs.boundary.threads import in_thread
from runs.loop.activities import guarded
from runs.loop.contracts import PerformInput

RUN, OPERATION = uuid.uuid4(), uuid.uuid4()


@pytest.fixture
def written():
    """A logger of JSON lines and what it wrote."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logs.JsonLines())
    logger = logging.getLogger(f"test.{uuid.uuid4().hex}")
    logger.addHandler(handler)
    logger.propagate = False
    logger.setLevel(logging.INFO)
    return logger, lambda: [json.loads(line) for line in stream.getvalue().splitlines()]


def test_ids_nest_and_end_with_their_block(written):
    logger, lines = written
    with logs.about(run_id=RUN):
        with logs.about(operation_id=OPERATION, request_id=""):
            logger.info("inside")
        logger.info("between")
    logger.info("outside")
    found = [(line.get("run_id"), line.get("operation_id"), "request_id" in line) for line in lines()]
    assert found == [(str(RUN), str(OPERATION), False), (str(RUN), None, False), (None, None, False)]


async def test_they_follow_into_threads_and_tasks_and_do_not_mix(written):
    logger, lines = written

    async def work(run_id):
        with logs.about(run_id=run_id):
            await asyncio.sleep(0)
            await in_thread(logger.info, "%s", run_id)

    await asyncio.gather(*[work(uuid.uuid4()) for _ in range(20)])
    assert len(lines()) == 20
    assert all(line["run_id"] == line["message"] for line in lines())


async def test_an_activity_names_its_run_and_operation(written):
    logger, lines = written

    @guarded
    async def perform(asked):
        logger.info("at work")

    await perform(PerformInput(run_id=RUN, operation_id=OPERATION))
    [line] = lines()
    assert (line["run_id"], line["operation_id"], line["level"]) == (str(RUN), str(OPERATION), "INFO")


def test_a_line_is_one_line_and_bounded_whatever_is_in_it(written):
    logger, lines = written
    logger.info("first\nsecond\u2028third %s", "x" * 100_000)
    try:
        raise ValueError("broken\nhere")
    except ValueError:
        logger.exception("failed")
    told, failed = lines()
    assert len(told["message"]) < logs.MESSAGE_CHARS_MAX + 50
    assert "characters)" in told["message"]
    assert failed["error"] == "ValueError"
    assert failed["trace"].endswith("ValueError")
    assert "test_logs.py" in failed["trace"]
    assert "broken" not in failed["trace"]  # an exception's words may quote an argument


def test_text_lines_name_them_too():
    line = logging.LogRecord("n", logging.INFO, "p", 1, "said", (), None)
    with logs.about(run_id=RUN):
        assert logs.TextLines("%(message)s").format(line) == f"said [run_id={RUN}]"


def test_a_span_tells_the_type_of_an_exception_and_none_of_its_words():
    export = pytest.importorskip("opentelemetry.sdk.trace.export")
    memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter").InMemorySpanExporter()
    traces.begin_with(export.SimpleSpanProcessor(memory), "test")
    try:
        with pytest.raises(ValueError, match="secret"), traces.span("work"):
            raise ValueError("secret")
        [told] = memory.get_finished_spans()
    finally:
        traces.end()
    assert told.status.description == "ValueError"
    assert "secret" not in told.to_json()

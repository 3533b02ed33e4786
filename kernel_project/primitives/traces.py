"""Traces by setting: spans of requests, workflows and activities, sent as OTLP over HTTP. Off, nothing is loaded.

Spans carry ids and names, never a prompt, an argument or a result. Workflow spans are made when a step happens for the
first time and not when it is replayed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any

from kernel_project.primitives import logs

SERVICE = "agent-kernel"
FLUSH_MILLISECONDS = 3_000
EXTRA = "KERNEL_TRACES_URL needs the packages of the extra `traces`: pip install 'agent-kernel[traces]'"

_provider: list[Any] = []  # the SDK's, once begun; a list, for there is nothing to import while it is off


def begin(url: str, process: str) -> None:
    """Send this process's spans to an OTLP endpoint (`http://host:4318/v1/traces`) from now on; nothing without one.

    Raises RuntimeError when the packages are missing: a setting must not be passed over in silence.
    """
    if not url or _provider:
        return
    try:
        otlp = import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
        export = import_module("opentelemetry.sdk.trace.export")
    except ImportError as error:
        raise RuntimeError(EXTRA) from error
    begin_with(export.BatchSpanProcessor(otlp.OTLPSpanExporter(endpoint=url)), process)


def begin_with(processor: Any, process: str) -> None:
    """The same, with spans going to a processor of the OpenTelemetry SDK."""
    sdk, resources = import_module("opentelemetry.sdk.trace"), import_module("opentelemetry.sdk.resources")
    resource = resources.Resource.create({"service.name": SERVICE, "service.instance.id": process})
    provider = sdk.TracerProvider(resource=resource, shutdown_on_exit=False)  # the worker ends by os._exit: see end()
    provider.add_span_processor(processor)
    _provider[:] = [provider]


def end() -> None:
    """Send what is still to be sent, within FLUSH_MILLISECONDS."""
    for provider in _provider:
        provider.force_flush(FLUSH_MILLISECONDS)
        provider.shutdown()
    _provider.clear()


def interceptors() -> list[Any]:
    """What a Temporal client needs for a trace to go on from a request through the workflow into its activities."""
    if not _provider:
        return []
    from temporalio.contrib.opentelemetry import TracingInterceptor

    return [TracingInterceptor(tracer=_provider[0].get_tracer(SERVICE))]


def span(name: str, **facts: str) -> AbstractContextManager[None]:
    """A span around the block, with the ids that log lines carry there; nothing while traces are off."""
    return _span(name, facts) if _provider else contextlib.nullcontext()


@contextlib.contextmanager
def _span(name: str, facts: dict[str, str]) -> Iterator[None]:
    known = {f"kernel.{key}": value for key, value in logs.ids().items()}
    tracer = _provider[0].get_tracer(SERVICE)
    with tracer.start_as_current_span(
        name, attributes={**known, **facts}, record_exception=False, set_status_on_exception=False
    ) as begun:
        try:
            yield
        except BaseException as error:  # of its type alone: its words may quote an argument
            begun.set_status(import_module("opentelemetry.trace").StatusCode.ERROR, type(error).__name__)
            raise

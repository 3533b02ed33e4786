"""Tools that are Python functions of this installation, registered with their declaration."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Any, Literal

from django.conf import settings

from kernel_project.primitives.canonical import NotCanonical, canonical_json, sha256_hex
from runs.boundary.contracts import Dispatch, EffectResult, NotSent, ProbeAnswer
from runs.boundary.threads import with_clean_connection

TOOLS_MAX = 1_000  # registered functions of one process
THREADS_MAX = 32  # functions that may block at once; one more is told that it was not sent

Answer = Any  # text, an EffectResult, nothing, or any value with a JSON form
Perform = Callable[..., Answer | Awaitable[Answer]]
Probe = Callable[[Dispatch], ProbeAnswer | Awaitable[ProbeAnswer]]

_pool = ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="tool")
_free = threading.BoundedSemaphore(THREADS_MAX)


class ToolExited(Exception):
    """The function tried to end the process, or raised what only an interpreter may raise."""


@dataclass(frozen=True)
class PythonTool:
    """A function with what its author declares of it. A declaration that says nothing is a write with neither key nor
    probe. The function is called as `function(dispatch, **arguments)`; `configuration` stands in docs/agents.md.
    """

    name: str
    function: Perform
    description: str
    input_schema: Mapping[str, Any]
    effect: Literal["read", "write"] = "write"
    idempotent_for_seconds: int | None = None
    probe: Probe | None = None
    timeout_seconds: int = 60
    configuration: Mapping[str, Any] = field(default_factory=dict)
    compensation: Mapping[str, Any] | None = None  # the fields of `Compensation`

    @property
    def digest(self) -> str:
        """Pins what approvals bind to: name, description and schema."""
        pinned = {"name": self.name, "description": self.description, "input_schema": dict(self.input_schema)}
        return sha256_hex(canonical_json(pinned).encode())


_registered: dict[str, PythonTool] = {}


def register(
    name: str,
    *,
    input_schema: Mapping[str, Any],
    effect: Literal["read", "write"] = "write",
    idempotent_for_seconds: int | None = None,
    probe: Probe | None = None,
    timeout_seconds: int = 60,
    configuration: Mapping[str, Any] | None = None,
    compensation: Mapping[str, Any] | None = None,
) -> Callable[[Perform], Perform]:
    """Register the decorated function as a tool; its docstring is what the model reads of it."""

    def keep(function: Perform) -> Perform:
        assert len(_registered) < TOOLS_MAX, "too many registered functions"
        known = _registered.get(name)
        assert known is None or known.function.__module__ == function.__module__, f"two functions are named {name!r}"
        _registered[name] = PythonTool(
            name, function, inspect.getdoc(function) or "", input_schema, effect, idempotent_for_seconds, probe,
            timeout_seconds, dict(configuration or {}), compensation,
        )  # fmt: skip
        return function

    return keep


def load(modules: list[str]) -> dict[str, PythonTool]:
    """Import the modules that register tools and return all that is registered, by name."""
    for module in modules:
        import_module(module)
    return dict(_registered)


def _find(name: str) -> PythonTool | None:
    """The function of that name; a process that is no worker (a probe's) loads the modules when it first asks."""
    return _registered.get(name) or load(settings.KERNEL_TOOL_MODULES).get(name)


async def perform(dispatch: Dispatch) -> EffectResult:
    """Call the function. It raises NotSent or Refused for a call that had no effect; anything else is unclear.

    A function that blocks cannot be stopped: a cancellation is heard only when it has returned, with its answer.
    """
    tool = _find(dispatch.configuration["remote_name"])
    if tool is None:
        raise NotSent(f"this worker has no function registered as {dispatch.configuration['remote_name']!r}")
    call = _bound(tool, dispatch)
    if inspect.iscoroutinefunction(tool.function):
        await dispatch.sending()
        return as_result(await _guarded(call))
    if not _free.acquire(blocking=False):
        raise NotSent(f"all {THREADS_MAX} threads for Python tools are busy")
    try:
        await dispatch.sending()
    except BaseException:
        _free.release()
        raise
    return as_result(await _on_a_thread(call))


def _bound(tool: PythonTool, dispatch: Dispatch) -> Callable[[], Any]:
    try:
        inspect.signature(tool.function).bind(dispatch, **dispatch.arguments)
    except TypeError as error:
        raise NotSent(f"the function does not take these arguments: {error}") from error
    return partial(tool.function, dispatch, **dispatch.arguments)


async def _guarded(call: Callable[[], Any]) -> Any:
    try:
        return await call()
    except (SystemExit, KeyboardInterrupt) as error:
        raise ToolExited(type(error).__name__) from error


async def _on_a_thread(call: Callable[[], Any]) -> Any:
    """Wait for the function, whatever cancels the waiting: its answer is the only knowledge of what it did."""
    context = contextvars.copy_context()
    future = asyncio.get_running_loop().run_in_executor(_pool, context.run, _in_its_thread, call)
    while not future.done():
        try:
            await asyncio.wait({future})
        except asyncio.CancelledError:
            continue
    return future.result()


def _in_its_thread(call: Callable[[], Any]) -> Any:
    try:
        return with_clean_connection(call)
    except Exception as error:
        if isinstance(error, StopIteration):  # asyncio cannot carry it, and would wait for ever
            raise ToolExited("StopIteration") from error
        raise
    except BaseException as error:  # SystemExit would end the worker
        raise ToolExited(type(error).__name__) from error
    finally:
        _free.release()


def as_result(answer: Answer) -> EffectResult:
    """What the function returned, as a result. Never raises: the effect has happened."""
    if isinstance(answer, EffectResult):
        return answer
    if answer is None or isinstance(answer, str):
        return EffectResult(text=answer or "")
    kind = type(answer).__name__
    try:
        return EffectResult(text=canonical_json(answer), structured=answer)
    except NotCanonical as error:
        return EffectResult(text=f"(a value of the type {kind})", structured=answer, invalid=error.message)
    except Exception:
        return EffectResult(text=f"(a value of the type {kind})", invalid=f"the function returned a {kind}")


async def probe(dispatch: Dispatch) -> ProbeAnswer:
    """Ask the function's own probe."""
    tool = _find(dispatch.configuration["remote_name"])
    assert tool is not None, f"{dispatch.tool} is not registered in this process"
    assert tool.probe is not None, f"{dispatch.tool} declares no probe"
    if inspect.iscoroutinefunction(tool.probe):
        answer: ProbeAnswer = await tool.probe(dispatch)
        return answer
    look = partial(with_clean_connection, partial(tool.probe, dispatch))
    found = await asyncio.to_thread(look)
    assert isinstance(found, ProbeAnswer), f"the probe of {tool.name} gave no ProbeAnswer"
    return found

"""Tools that are Python functions of this installation, registered with their declaration."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal

from kernel_project.primitives.canonical import canonical_json, sha256_hex
from runs.boundary.contracts import Dispatch, EffectResult, NotSent, ProbeAnswer

TOOLS_MAX = 1_000  # registered functions of one process

Answer = str | EffectResult
Perform = Callable[..., Answer | Awaitable[Answer]]
Probe = Callable[[Dispatch], ProbeAnswer | Awaitable[ProbeAnswer]]


@dataclass(frozen=True)
class PythonTool:
    """A function with what its author declares of it. A declaration that says nothing is a write with neither key nor
    probe. The function is called as `function(dispatch, **arguments)`.
    """

    name: str
    function: Perform
    description: str
    input_schema: Mapping[str, Any]
    effect: Literal["read", "write"] = "write"
    idempotent_for_seconds: int | None = None
    probe: Probe | None = None
    timeout_seconds: int = 60
    extra: Mapping[str, Any] = field(default_factory=dict)

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
) -> Callable[[Perform], Perform]:
    """Register the decorated function as a tool; its docstring is what the model reads of it."""

    def keep(function: Perform) -> Perform:
        assert len(_registered) < TOOLS_MAX, "too many registered functions"
        known = _registered.get(name)
        assert known is None or known.function.__module__ == function.__module__, f"two functions are named {name!r}"
        _registered[name] = PythonTool(
            name, function, inspect.getdoc(function) or "", input_schema, effect, idempotent_for_seconds, probe,
            timeout_seconds,
        )  # fmt: skip
        return function

    return keep


def load(modules: list[str]) -> dict[str, PythonTool]:
    """Import the modules that register tools and return all that is registered, by name."""
    for module in modules:
        import_module(module)
    return dict(_registered)


async def perform(dispatch: Dispatch) -> EffectResult:
    """Call the function. It raises NotSent or Refused for a call that had no effect; anything else is unclear."""
    tool = _registered.get(dispatch.configuration["remote_name"])
    if tool is None:
        raise NotSent(f"this worker has no function registered as {dispatch.configuration['remote_name']!r}")
    if dispatch.configuration["mark_sending"]:
        await dispatch.sending()
    answer = await _call(tool.function, dispatch, **dispatch.arguments)
    return answer if isinstance(answer, EffectResult) else EffectResult(text=answer)


async def probe(dispatch: Dispatch) -> ProbeAnswer:
    """Ask the function's own probe."""
    tool = _registered[dispatch.configuration["remote_name"]]
    assert tool.probe is not None, f"{tool.name} declares no probe"
    answer: ProbeAnswer = await _call(tool.probe, dispatch)
    return answer


async def _call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if inspect.iscoroutinefunction(function):
        return await function(*args, **kwargs)
    return await asyncio.to_thread(function, *args, **kwargs)

"""The door to models: `ask` picks the provider by the name's prefix. Never retries; imports no model library itself."""

from __future__ import annotations

import asyncio
from importlib import import_module
from threading import Event
from typing import Literal

from kernel_project.primitives.errors import Invalid
from runs.boundary.models import scripted
from runs.boundary.models.contracts import ModelAnswer, ModelRequest, check_base_url
from runs.boundary.models.errors import ModelError

Provider = Literal["openai", "anthropic", "scripted"]
_REAL = "runs.boundary.models.pydantic_ai_models"
_imported = Event()  # set after the whole import: a module half way through it is in sys.modules already


async def ask(request: ModelRequest) -> ModelAnswer:
    """Ask the model once: at most one HTTP request leaves.

    Raises ModelError, and nothing else but cancellation.
    """
    try:
        provider, name = split_model(request.model)
    except Invalid as error:
        raise ModelError("unsupported", error.message) from None
    if provider == "scripted":
        return await scripted.ask(request, name)
    if not _imported.is_set():  # 2 to 4 s, beside the event loop, whose heartbeats must not stop for it
        await asyncio.to_thread(import_module, _REAL)
        _imported.set()
    from runs.boundary.models import pydantic_ai_models

    return await pydantic_ai_models.ask(request, provider, name)


async def aclose() -> None:
    """Close the connections of this event loop; a later `ask` opens new ones."""
    if _imported.is_set():
        from runs.boundary.models import pydantic_ai_models

        await pydantic_ai_models.aclose()


def split_model(model: str) -> tuple[Provider, str]:
    """(`provider`, `name`) of `provider:name`. Raises Invalid with a sentence that says what would be right."""
    prefix, _, name = model.partition(":")
    if name.strip():
        match prefix:
            case "openai" | "anthropic" | "scripted":
                return prefix, name.strip()
    raise Invalid(
        f"the model {model[:100]!r} must be named openai:NAME, anthropic:NAME or scripted:FILE", code="unknown_model"
    )


def check_model(model: str, base_url: str | None = None) -> None:
    """Check an agent's model before it is saved; a script is read as well. Raises Invalid."""
    provider, name = split_model(model)
    if provider == "scripted":
        if base_url is not None:
            raise Invalid("a scripted model has no base_url", code="bad_base_url")
        scripted.check(name)
    elif base_url is not None:
        try:
            check_base_url(base_url)
        except ValueError as error:
            raise Invalid(str(error), code="bad_base_url") from None

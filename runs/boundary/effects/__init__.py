"""One file for each kind of effect. A new kind is a new file here and a line in ADAPTERS."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

ADAPTERS = {
    "http": "runs.boundary.effects.http",
    "mcp": "runs.boundary.effects.mcp",
    "python": "runs.boundary.effects.python",
    "sandbox": "runs.boundary.effects.sandbox",
}


def adapter(kind: str) -> ModuleType:
    """The module that carries out calls of this kind; imported on first use, because some are slow to import."""
    return import_module(ADAPTERS[kind])

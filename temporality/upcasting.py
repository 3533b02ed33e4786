"""Events of older minor versions, read as today's: what a later minor added is filled in. Stores nothing.

The inbox keeps every event as it was told, for ever; this is done each time one is read for the projection. An upcaster
only adds members that are absent, and gives the same for the same event: a rebuild gives the same projection.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

Data = Mapping[str, Any]
Upcaster = Callable[[Data], Data]


def _effect_of_a_failure(data: Data) -> Data:
    """`effect` came later: of a call that failed without saying so nobody knows whether it had one."""
    return data if data.get("effect") else {**data, "effect": "uncertain"}


# By type, the oldest first; each turns one minor into the next.
UPCASTERS: Final[Mapping[str, tuple[Upcaster, ...]]] = MappingProxyType({
    "tool.failed": (_effect_of_a_failure,),
    "mcp.call.failed": (_effect_of_a_failure,),
})  # fmt: skip


def read(event_type: str, data: Data) -> Data:
    """The data of an event in its newest minor version; unknown members are as they were."""
    for upcaster in UPCASTERS.get(event_type, ()):
        data = upcaster(data)
    return data

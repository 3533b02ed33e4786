"""Which driver runs commands: chosen by a setting, never by what happens to be there. Falls back to nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import cache
from pathlib import Path
from typing import Protocol

from django.conf import settings

from runs.boundary.sandbox import execution
from runs.boundary.sandbox.capabilities import capabilities
from runs.boundary.sandbox.contracts import Capabilities, DriverName, Left, SandboxCommand, SandboxResult
from runs.boundary.sandbox.docker import Docker


class Driver(Protocol):
    """What can run a command. `leaves_evidence`: a command outlives its worker, or its end can be asked for later."""

    name: DriverName
    leaves_evidence: bool

    def capabilities(self, *, refresh: bool = False) -> Capabilities: ...

    async def run(
        self,
        command: SandboxCommand,
        *,
        before_start: Callable[[], Awaitable[None]],
        on_cancelled: Callable[[SandboxResult], None],
    ) -> SandboxResult: ...

    async def look(self, operation_id: str) -> Left: ...


class Bubblewrap:
    """Commands in namespaces of this machine. They end with their worker and leave nothing that could be asked."""

    name: DriverName = "bubblewrap"
    leaves_evidence = False

    def capabilities(self, *, refresh: bool = False) -> Capabilities:
        return capabilities(refresh=refresh)

    async def run(
        self,
        command: SandboxCommand,
        *,
        before_start: Callable[[], Awaitable[None]],
        on_cancelled: Callable[[SandboxResult], None],
    ) -> SandboxResult:
        return await execution.run(command, before_start=before_start, on_cancelled=on_cancelled)

    async def look(self, operation_id: str) -> Left:
        return Left("gone")


def chosen() -> Driver:
    """The driver that the settings name."""
    return driver(settings.SANDBOX_DRIVER, settings.SANDBOX_ENGINE, settings.SANDBOX_IMAGE, settings.WORKSPACE_ROOT)


@cache
def driver(name: DriverName, program: str, image: str, root: Path) -> Driver:
    return Docker(program, image, root) if name == "docker" else Bubblewrap()

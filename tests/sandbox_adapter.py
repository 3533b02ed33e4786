"""The sandbox's adapter without a journal: for tests of what a command does, and what is answered."""

from __future__ import annotations

from runs.boundary.contracts import Dispatch, EffectResult
from runs.boundary.effects import sandbox
from runs.boundary.sandbox.drivers import Bubblewrap, Driver
from runs.boundary.sandbox.lifecycle import End


class Heard:
    """Who is told of a sandbox's life, without a journal."""

    def __init__(self) -> None:
        self.was_created = False
        self.ends: list[End] = []

    async def created(self) -> None:
        self.was_created = True

    async def ended(self, end: End) -> None:
        self.ends.append(end)


async def answered(given: Dispatch, heard: Heard | None = None, driver: Driver | None = None) -> EffectResult:
    """What the adapter answers, with bubblewrap unless another driver is named."""
    return await sandbox.carry_out(given, driver or Bubblewrap(), heard or Heard())

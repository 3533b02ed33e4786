"""What the boundary and its adapters say to each other. Imports no framework.

An adapter is a module in `effects/` with `async def perform(dispatch) -> EffectResult` and, where the other side can be
asked, `async def probe(dispatch) -> ProbeAnswer`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any
from uuid import UUID

from pydantic import BaseModel, ConfigDict


class NotSent(Exception):
    """Provably nothing left this process: the effect did not happen."""


class Refused(Exception):
    """The other side rejected the request before doing anything: the effect did not happen."""


class EffectResult(BaseModel):
    """What the other side answered. The effect has happened, or the tool itself says that it failed (`is_error`)."""

    model_config = ConfigDict(frozen=True)

    text: str
    is_error: bool = False
    structured: Any = None
    invalid: str = ""  # why the result could not be read in full; the effect stands all the same
    truncated: bool = False  # the adapter itself had to stop reading at its limit
    media_type: str = "text/plain"
    cut_short: bool = False  # we ended the call ourselves while it ran: the error says nothing of what it has done


class ProbeVerdict(StrEnum):
    """What a look at the other side found for one idempotency key."""

    ONE = "one"
    ABSENT = "absent"
    MANY = "many"
    CANNOT_TELL = "cannot_tell"


class ProbeAnswer(BaseModel):
    """The verdict of one probe; `result` is what the effect is taken to have answered when the verdict is ONE."""

    model_config = ConfigDict(frozen=True)

    verdict: ProbeVerdict
    result: EffectResult | None = None
    detail: str = ""


@dataclass(frozen=True)
class Charge:
    """What a call of a model is taken to use up: tokens, and what they cost in the currency of the prices."""

    tokens: int
    cost: Decimal


NOTHING = Charge(0, Decimal(0))


@dataclass(frozen=True)
class Dispatch:
    """Permission to let one effect happen once. Only `operations.dispatch()` makes it, after its commit.

    `idempotency_key` is the operation's id as text: the same for every attempt of the operation. `configuration` is
    what the registry says of the tool and its server (see the adapter). `sending()` must be awaited right before the
    first byte can leave: of a write it looks once more whether it may go, and where the other side keeps no keys it
    commits that mark. Nothing may leave when it raises.
    `heartbeat` tells the engine that the effect is alive and may be called at any time.
    """

    operation_id: UUID
    run_id: UUID
    project_id: str
    attempt: int
    tool: str
    arguments: Mapping[str, Any]
    configuration: Mapping[str, Any]
    timeout_seconds: float
    deadline_at: datetime
    workspace: str
    sending: Callable[[], Awaitable[None]]
    heartbeat: Callable[..., None] = field(default=lambda *_: None)
    kind: str = ""
    record: Any = field(default=None, repr=False, compare=False)  # the operation's row, for the kernel itself

    @property
    def idempotency_key(self) -> str:
        return str(self.operation_id)

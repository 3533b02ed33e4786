"""A message on its way, and how its sender says that it was not taken. Sends nothing."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any
from uuid import UUID


class NotDelivered(Exception):
    """The other side did not take the message, or could not be reached. It is tried again."""


@dataclass(frozen=True)
class Message:
    """One message as it stands in its row; the id is the same on every attempt."""

    id: UUID
    target: str
    secret_env: str
    body: str

    @property
    def facts(self) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(self.body)
        return told

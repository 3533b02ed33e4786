"""What a tool declares of how its effect is undone. Imports no framework."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field


class Compensation(BaseModel):
    """What a tool declares: the tool that undoes it, and its arguments with placeholders of the call to be undone."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tool: Annotated[str, Field(min_length=1, max_length=255)]
    arguments: dict[str, Any] = {}

"""What is stored as JSON and handed between the kernel's parts. Imports no framework."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

AgentName = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f/]+$")]
LEFT_OUT_WHEN_EMPTY = frozenset({"delegates", "context_tokens_max"})
OnUncertain = Literal["wait", "continue", "fail"]


class Limits(BaseModel):
    """What a run may use up; checked before the next call, kept through restarts.

    Those that are not set are left out when written: older versions of the kernel refuse names that they do not know.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    turns_max: int = Field(default=50, ge=1, le=10_000)
    tool_calls_max: int = Field(default=200, ge=0, le=100_000)
    calls_per_turn_max: int = Field(default=32, ge=1, le=256)
    same_failure_max: int = Field(default=3, ge=1, le=100)
    tokens_max: int | None = Field(default=None, ge=1, le=10**12)
    cost_max: Decimal | None = Field(default=None, gt=0, max_digits=14, decimal_places=6)
    wall_seconds_max: int | None = Field(default=None, ge=1, le=366 * 24 * 3600)
    children_max: int | None = Field(default=None, ge=0, le=10_000)

    @model_serializer(mode="wrap")
    def _written(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in plain(self).items() if value is not None}


class AgentDefinition(BaseModel):
    """One version of an agent, as `load_agents` reads it from YAML and the admin edits it.

    What later versions added is left out when written and empty, as limits are that are not set.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: Annotated[str, Field(min_length=3, max_length=200, pattern=r"^[a-z_]+:.+$")]
    instructions: str = Field(default="", max_length=100_000)
    tools: tuple[str, ...] = Field(default=(), max_length=200)
    delegates: tuple[AgentName, ...] = Field(default=(), max_length=50)
    on_uncertain: OnUncertain = "wait"
    limits: Limits = Limits()
    base_url: str | None = Field(default=None, max_length=500)
    api_key_env: str | None = Field(default=None, max_length=100, pattern=r"^[A-Z][A-Z0-9_]*_API_KEY$")
    max_output_tokens: int = Field(default=8_192, ge=1, le=1_000_000)
    context_tokens_max: int | None = Field(default=None, ge=1_000, le=10_000_000)
    temperature: float | None = Field(default=None, ge=0, le=2)
    model_timeout_seconds: int = Field(default=120, ge=1, le=3600)

    @model_serializer(mode="wrap")
    def _written(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in plain(self).items() if value or name not in LEFT_OUT_WHEN_EMPTY}

    def canonical(self) -> dict[str, Any]:
        """The definition as plain JSON values, for storing and for its digest."""
        return self.model_dump(mode="json")

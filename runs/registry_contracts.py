"""The file that `manage.py load_agents` reads: servers, tools, policies and agents of one project."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from runs.boundary.compensation_declared import Compensation
from runs.boundary.http_config import HttpProbe, HttpRequest
from runs.boundary.mcp_config import McpServerConfig
from runs.contracts import AgentDefinition

Slug = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,99}$")]
Name = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f/]+$")]
EffectName = Literal["read", "write"]


class Strict(BaseModel):
    """A misspelt field is an error, not a setting that silently does nothing."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Declaration(Strict):
    """What an operator vouches for. Saying nothing means: a write, without key, without probe."""

    effect: EffectName = "write"
    idempotent_for_seconds: int | None = Field(default=None, ge=1)
    timeout_seconds: int = Field(default=60, ge=1, le=24 * 3600)
    configuration: dict[str, Any] = {}
    compensation: Compensation | None = None


class McpToolFile(Declaration):
    """A tool of a declared MCP server; its description and schema are asked of the server and pinned."""

    kind: Literal["mcp"]
    server: Name
    tool: Annotated[str, Field(min_length=1, max_length=255)]
    probe: dict[str, Any] | None = None
    key_argument: str = Field(default="", max_length=200)
    key_template: str = Field(default="", max_length=200)


class PythonToolFile(Strict):
    """A function that a module of this installation registers; the declaration stands beside the function."""

    kind: Literal["python"]
    module: Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*$")]
    function: Name


class SandboxToolFile(Declaration):
    """A command in the sandbox; `configuration` is described in docs/sandbox.md."""

    kind: Literal["sandbox"]
    name: Name
    description: str = Field(default="", max_length=10_000)
    input_schema: dict[str, Any]
    replay_safe: bool = False


class HttpToolFile(Declaration):
    """One request of an HTTP API; `request` and `probe` are described in docs/http.md."""

    kind: Literal["http"]
    name: Name
    description: str = Field(default="", max_length=10_000)
    input_schema: dict[str, Any]
    request: HttpRequest
    probe: HttpProbe | None = None


ToolFile = Annotated[McpToolFile | PythonToolFile | SandboxToolFile | HttpToolFile, Field(discriminator="kind")]


class PolicyFile(Strict):
    """A rule; see docs/approvals.md."""

    name: Name
    answer: Literal["allow", "deny", "require"]
    agent: str = Field(default="*", max_length=100)
    tool: str = Field(default="*", max_length=255)
    effect: EffectName | Literal["", "opaque"] = ""
    arguments: tuple[dict[str, Any], ...] = ()
    group: str = Field(default="", max_length=150)
    quorum: int = Field(default=1, ge=1, le=20)
    deadline_seconds: int = Field(default=24 * 3600, ge=1, le=365 * 24 * 3600)
    on_expiry: Literal["reject", "cancel_run", "escalate"] = "reject"
    escalate_to: str = Field(default="", max_length=150)
    four_eyes: bool = False
    break_glass: bool = False


Amount = Annotated[Decimal, Field(ge=0, max_digits=14, decimal_places=6)]


class PriceFile(Strict):
    """What a model costs for a million tokens each; see docs/agents.md."""

    model: str = Field(min_length=3, max_length=200, pattern=r"^[a-z_]+:.+$")
    input: Amount
    output: Amount
    cached_input: Amount | None = None


class AgentFile(AgentDefinition):
    """An agent with its name; the rest is its definition."""

    name: Name


class ProjectFile(Strict):
    """The whole file."""

    project: Slug
    mcp_servers: tuple[McpServerConfig, ...] = ()
    tools: tuple[ToolFile, ...] = ()
    policies: tuple[PolicyFile, ...] = ()
    prices: tuple[PriceFile, ...] = ()
    agents: tuple[AgentFile, ...] = ()

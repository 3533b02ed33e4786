"""Register a project's servers, tools, policies and agents from a file: all of it or nothing."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from django.db import transaction
from django.db.models import Max
from django.db.models.functions import Now
from pydantic import ValidationError

from approvals import policy
from approvals.contracts import Rule
from kernel_project.primitives.canonical import canonical_bytes, sha256_hex
from kernel_project.primitives.errors import Invalid
from runs.boundary import delegates
from runs.boundary.arguments import schema_problems
from runs.boundary.compensation_declared import Compensation
from runs.boundary.contracts import NotSent
from runs.boundary.effects import python
from runs.boundary.mcp_config import McpServerConfig
from runs.boundary.mcp_pool import close_sessions
from runs.boundary.mcp_tools import ListedTool, definition_digest, list_tools
from runs.boundary.models import port
from runs.boundary.tool_names import exposed_name
from runs.contracts import AgentDefinition
from runs.models import Agent, AgentVersion, Kind, McpServer, ModelPrice, Project, Tool
from runs.registry_contracts import (
    AgentFile,
    HttpToolFile,
    McpToolFile,
    PolicyFile,
    PriceFile,
    ProjectFile,
    PythonToolFile,
    SandboxToolFile,
)

FILE_BYTES_MAX = 1024 * 1024
PROBLEMS_SHOWN_MAX = 10


@dataclass
class Report:
    """What a load did, a line each; `problems` are tools that a server offers and nobody can use."""

    done: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def load(path: Path, by: str, listing_workspace: str = "") -> Report:
    """Read the file and register what it says. Loading the same file again changes nothing.

    `listing_workspace` stands for {workspace} while servers are asked for their tools. Raises Invalid, with the place
    in the file, and changes nothing then.
    """
    return register(read(path), by, listing_workspace)


def read(path: Path) -> ProjectFile:
    """The file, checked. Raises Invalid with one line for each mistake."""
    if not path.is_file():
        raise Invalid(f"there is no file {path}")
    if path.stat().st_size > FILE_BYTES_MAX:
        raise Invalid(f"{path} is larger than {FILE_BYTES_MAX} bytes")
    try:
        content = yaml.safe_load(path.read_text())
        return ProjectFile.model_validate(content)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise Invalid(f"{path} is not valid YAML in UTF-8: {error}") from None
    except ValidationError as error:
        wrong = error.errors(include_input=False, include_url=False)[:PROBLEMS_SHOWN_MAX]
        lines = [f"{'.'.join(str(part) for part in e['loc'])}: {e['msg']}" for e in wrong]
        raise Invalid(f"{path}: " + "; ".join(lines)) from None


def register(file: ProjectFile, by: str, listing_workspace: str = "") -> Report:
    """Register what a file says, in one transaction, after its servers were asked for their tools."""
    report = Report()
    listed = asyncio.run(_ask_servers(file, listing_workspace, report))
    functions = _functions(sorted({tool.module for tool in file.tools if isinstance(tool, PythonToolFile)}))
    with transaction.atomic():
        project, _ = Project.objects.get_or_create(slug=file.project, defaults={"name": file.project})
        servers = {config.name: _save_server(project, config, report) for config in file.mcp_servers}
        for tool in file.tools:
            match tool:
                case McpToolFile():
                    values = _mcp_tool(tool, servers, listed)
                case PythonToolFile():
                    values = _python_tool(tool, functions)
                case SandboxToolFile():
                    values = _sandbox_tool(tool)
                case HttpToolFile():
                    values = _http_tool(tool)
            _save_tool(project, values, report)
        _check_compensations(project)
        for rule in file.policies:
            _save_policy(project, rule, by, report)
        for price in file.prices:
            _save_price(project, price, report)
        for agent in file.agents:  # all of them first: they may delegate to each other
            Agent.objects.get_or_create(project=project, name=agent.name)
        for agent in file.agents:
            _save_agent(project, agent, by, report)
    return report


def _functions(modules: list[str]) -> dict[str, python.PythonTool]:
    try:
        return python.load(modules)
    except ImportError as error:
        raise Invalid(f"a module of tools cannot be imported: {error}") from error


async def _ask_servers(file: ProjectFile, workspace: str, report: Report) -> dict[tuple[str, str], ListedTool]:
    listed: dict[tuple[str, str], ListedTool] = {}
    try:
        for config in file.mcp_servers:
            listing = await list_tools(config, workspace)
            report.problems += listing.problems
            listed |= {(config.name, tool.name): tool for tool in listing.tools}
    except NotSent as error:
        raise Invalid(f"an MCP server cannot be asked for its tools: {error}") from error
    finally:
        await close_sessions()
    return listed


def _save_server(project: Project, config: McpServerConfig, report: Report) -> McpServer:
    stored = config.model_dump(mode="json", exclude_defaults=True, exclude={"name"})
    server, created = McpServer.objects.update_or_create(
        project=project, name=config.name, defaults={"configuration": {**stored, "transport": config.transport}}
    )
    report.done.append(f"MCP server {config.name} {'added' if created else 'kept'}")
    return server


def _mcp_tool(
    tool: McpToolFile, servers: dict[str, McpServer], listed: dict[tuple[str, str], ListedTool]
) -> dict[str, Any]:
    if tool.server not in servers:
        raise Invalid(f"the tool {tool.server}/{tool.tool} is on a server that the file does not declare")
    found = listed.get((tool.server, tool.tool))
    if found is None:
        offered = ", ".join(name for server, name in listed if server == tool.server)[:500]
        raise Invalid(f"the MCP server {tool.server} offers no usable tool {tool.tool!r}; it offers {offered}")
    return _declared(tool) | {
        "kind": "mcp",
        "server": servers[tool.server],
        "name": f"{tool.server}/{tool.tool}",
        "remote_name": tool.tool,
        "exposed_name": exposed_name(tool.server, tool.tool),
        "description": found.description,
        "input_schema": found.input_schema,
        "definition_digest": definition_digest(found),
        "probe": tool.probe,
        "key_argument": tool.key_argument,
        "key_template": tool.key_template,
    }


def _python_tool(tool: PythonToolFile, functions: dict[str, python.PythonTool]) -> dict[str, Any]:
    function = functions.get(tool.function)
    if function is None:
        raise Invalid(f"the module {tool.module} registers no tool {tool.function!r}")
    return {
        "kind": "python",
        "name": function.name,
        "remote_name": function.name,
        "exposed_name": exposed_name("", function.name),
        "description": function.description,
        "input_schema": dict(function.input_schema),
        "definition_digest": function.digest,
        "effect": function.effect,
        "idempotent_for_seconds": function.idempotent_for_seconds,
        "probe": {} if function.probe else None,
        "timeout_seconds": function.timeout_seconds,
        "configuration": dict(function.configuration),
        "compensation": _compensation(function),
    }


def _compensation(function: python.PythonTool) -> dict[str, Any] | None:
    if function.compensation is None:
        return None
    try:
        return Compensation.model_validate(function.compensation).model_dump(mode="json")
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        raise Invalid(f"the compensation of the tool {function.name!r} cannot be read: {first['msg']}") from None


def _sandbox_tool(tool: SandboxToolFile) -> dict[str, Any]:
    return _plain_tool(tool, tool.configuration) | {"replay_safe": tool.replay_safe}


def _http_tool(tool: HttpToolFile) -> dict[str, Any]:
    request = tool.request.model_dump(mode="json", exclude_defaults=True)
    probe = tool.probe.model_dump(mode="json", exclude_defaults=True) if tool.probe else None
    return _plain_tool(tool, {**tool.configuration, "request": request}) | {"probe": probe}


def _plain_tool(tool: SandboxToolFile | HttpToolFile, configuration: dict[str, Any]) -> dict[str, Any]:
    """A tool that the file itself describes: what approvals bind to is all that it says."""
    if problems := schema_problems(tool.input_schema):
        raise Invalid(f"the tool {tool.name!r}: {problems[0]}")
    pinned = {
        "configuration": configuration,
        "description": tool.description,
        "input_schema": tool.input_schema,
        "name": tool.name,
    }
    return _declared(tool) | {
        "kind": tool.kind,
        "configuration": configuration,
        "name": tool.name,
        "remote_name": tool.name,
        "exposed_name": exposed_name("", tool.name),
        "description": tool.description,
        "input_schema": tool.input_schema,
        "definition_digest": sha256_hex(canonical_bytes(pinned)),
    }


def _declared(tool: McpToolFile | SandboxToolFile | HttpToolFile) -> dict[str, Any]:
    return {
        "effect": tool.effect,
        "idempotent_for_seconds": tool.idempotent_for_seconds,
        "timeout_seconds": tool.timeout_seconds,
        "configuration": tool.configuration,
        "compensation": tool.compensation.model_dump(mode="json") if tool.compensation else None,
    }


def _save_tool(project: Project, values: dict[str, Any], report: Report) -> None:
    name = values.pop("name")
    _check_kind(project, name, values["kind"])
    tool, created = Tool.objects.update_or_create(project=project, name=name, defaults=values)
    report.done.append(f"tool {tool.name} {'added' if created else 'kept'} ({tool.effect})")


def _check_kind(project: Project, name: str, kind: str) -> None:
    """Another agent and a tool of an MCP server may come to have one name: neither takes the other's place."""
    known = Tool.objects.filter(project=project, name=name).values_list("kind", flat=True).first()
    if known is not None and known != kind and Kind.AGENT in (known, kind):
        raise Invalid(f"{name!r} is another agent and a tool of an MCP server at once: give the server another name")


def _save_delegates(project: Project, name: str, definition: AgentDefinition) -> None:
    """Every agent that may be delegated to must be there; each gets the tool by which models know it."""
    wanted = definition.delegates
    known = set(Agent.objects.filter(project=project, name__in=wanted).values_list("name", flat=True))
    if missing := sorted(set(wanted) - known):
        raise Invalid(f"the agent {name!r} delegates to agents that the project does not have: {', '.join(missing)}")
    for agent in wanted:
        _check_kind(project, delegates.tool_name(agent), Kind.AGENT)
        values = delegates.tool_values(agent)
        Tool.objects.update_or_create(project=project, name=delegates.tool_name(agent), defaults=values)


def _check_compensations(project: Project) -> None:
    """Every tool that is to undo an effect must be there, also those that an earlier file declared."""
    tools = list(Tool.objects.filter(project=project).values_list("name", "compensation"))
    names = {name for name, _ in tools}
    for name, declared in tools:
        if declared is not None and declared.get("tool") not in names:
            raise Invalid(
                f"the compensation of {name!r} names a tool that the project does not have: {declared['tool']!r}"
            )


def _save_policy(project: Project, rule: PolicyFile, by: str, report: Report) -> None:
    saved, created = policy.save(project.slug, Rule(**rule.model_dump()), by)
    report.done.append(f"policy {saved} {'added' if created else 'kept'}")


def _save_price(project: Project, price: PriceFile, report: Report) -> None:
    amounts = {"input": price.input, "output": price.output, "cached_input": price.cached_input}
    saved, created = ModelPrice.objects.update_or_create(
        project=project, model=price.model, defaults={**amounts, "changed_at": Now()}
    )
    report.done.append(f"price of {saved.model} {'added' if created else 'kept'}")


def _save_agent(project: Project, agent: AgentFile, by: str, report: Report) -> None:
    definition = AgentDefinition.model_validate(agent.model_dump(exclude={"name"}))
    version, created = save_version(project, agent.name, definition, by)
    report.done.append(f"agent {version} {'added' if created else 'kept'}")


def save_version(project: Project, name: str, definition: AgentDefinition, by: str) -> tuple[AgentVersion, bool]:
    """The agent's newest version with this definition: the last one if it is the same, else a new one.

    Raises Invalid for a model that cannot be, a tool or agent that the project does not have, or limits that cannot be
    held.
    """
    port.check_model(definition.model, definition.base_url)
    _check_limits(project, name, definition)
    known = set(Tool.objects.filter(project=project, name__in=definition.tools).values_list("name", flat=True))
    if missing := sorted(set(definition.tools) - known):
        raise Invalid(f"the agent {name!r} names tools that the project does not have: {', '.join(missing)}")
    _save_delegates(project, name, definition)
    agent, _ = Agent.objects.get_or_create(project=project, name=name)
    agent = Agent.objects.select_for_update().get(id=agent.id)
    digest = sha256_hex(canonical_bytes(definition.canonical()))
    last = agent.versions.order_by("-version").first()
    if last is not None and last.digest == digest:
        return last, False
    number = (agent.versions.aggregate(last=Max("version"))["last"] or 0) + 1
    made = AgentVersion.objects.create(
        agent=agent, version=number, definition=definition.canonical(), digest=digest, created_by=by
    )
    return made, True


def _check_limits(project: Project, name: str, definition: AgentDefinition) -> None:
    """A limit that every call would break, or that nobody could judge, is refused before a run meets it."""
    limits = definition.limits
    if limits.tokens_max is not None and limits.tokens_max <= definition.max_output_tokens:
        raise Invalid(
            f"the agent {name!r} may use {limits.tokens_max} tokens in all and {definition.max_output_tokens} in one "
            f"answer: raise limits.tokens_max or lower max_output_tokens"
        )
    if limits.cost_max is None:
        return
    price = ModelPrice.objects.filter(project=project, model=definition.model).first()
    if price is None:
        raise Invalid(
            f"the agent {name!r} has limits.cost_max, and the project knows no price of {definition.model}: add it "
            f"under `prices`"
        )
    if limits.cost_max <= price.output * definition.max_output_tokens / 1_000_000:
        raise Invalid(
            f"the agent {name!r} may cost {limits.cost_max} in all, and one answer of {definition.max_output_tokens} "
            f"tokens may cost as much: raise limits.cost_max or lower max_output_tokens"
        )

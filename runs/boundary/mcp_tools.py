"""What tools an MCP server offers, for a person to register. Trusts nothing that the server says about them.

Hints (read-only, idempotent, …) are shown and decide nothing: what a tool may do is what our registry declares.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict

from kernel_project.primitives.canonical import NotCanonical, canonical_bytes, sha256_hex
from runs.boundary.arguments import schema_problems
from runs.boundary.mcp_config import McpServerConfig
from runs.boundary.mcp_pool import current_sessions

TOOLS_MAX = 500  # of one server; a model cannot choose among more
NAME_CHARACTERS_MAX = 256
DESCRIPTION_CHARACTERS_MAX = 16 * 1024
SCHEMA_BYTES_MAX = 64 * 1024
ANNOTATIONS_BYTES_MAX = 4 * 1024
PROBLEMS_MAX = 100


class ListedTool(BaseModel):
    """One usable tool, as the server describes it."""

    model_config = ConfigDict(frozen=True)

    server: str
    name: str
    title: str = ""
    description: str = ""
    input_schema: dict[str, Any]
    output_schema: dict[str, Any] | None = None
    annotations: dict[str, Any] = {}


class Listing(BaseModel):
    """The usable tools in the server's order, and a sentence for each one that is left out."""

    model_config = ConfigDict(frozen=True)

    tools: list[ListedTool]
    problems: list[str]


class _Unusable(Exception):
    pass


async def list_tools(config: McpServerConfig, workspace: str = "") -> Listing:
    """Ask a server for its tools. Raises NotSent, with a sentence, if it cannot be started, reached or asked."""
    return read_listing(config.name, await current_sessions().list_tools(config, workspace))


def definition_digest(listed: ListedTool) -> str:
    """What approvals bind to."""
    return digest_of_definition(listed.server, listed.name, listed.description, listed.input_schema)


def digest_of_definition(server: str, name: str, description: str, input_schema: Mapping[str, Any]) -> str:
    """SHA-256 of the canonical definition: another description or schema under the same name is another tool.

    Raises NotCanonical for a schema that has no canonical form.
    """
    definition = {"server": server, "name": name, "description": description, "input_schema": dict(input_schema)}
    return sha256_hex(canonical_bytes(definition))


def read_listing(server: str, raw_tools: list[dict[str, Any]]) -> Listing:
    """Sort usable tools from unusable ones; one bad tool costs only itself."""
    problems: list[str] = []
    tools: dict[str, ListedTool] = {}
    if len(raw_tools) > TOOLS_MAX:
        problems.append(f"the server lists {len(raw_tools)} tools; only the first {TOOLS_MAX} are taken")
    ambiguous = _ambiguous_names(raw_tools[:TOOLS_MAX])
    for position, raw in enumerate(raw_tools[:TOOLS_MAX], start=1):
        try:
            listed = _read_tool(server, raw, ambiguous)
            tools.setdefault(listed.name, listed)
        except _Unusable as error:
            problems.append(f"tool {position} ({_shown(raw.get('name'))}) is left out: {error}")
    return Listing(tools=list(tools.values()), problems=problems[:PROBLEMS_MAX])


def _ambiguous_names(raw_tools: list[dict[str, Any]]) -> set[str]:
    """Names given to different tools: a call by such a name could reach the one that nobody approved."""
    definitions = {json.dumps(raw, sort_keys=True): raw.get("name") for raw in raw_tools}
    counted = Counter(name for name in definitions.values() if isinstance(name, str))
    return {name for name, count in counted.items() if count > 1}


def _read_tool(server: str, raw: Mapping[str, Any], ambiguous: set[str]) -> ListedTool:
    name = raw.get("name")
    if not isinstance(name, str) or not name.strip():
        raise _Unusable("it has no name")
    if len(name) > NAME_CHARACTERS_MAX or not name.isprintable():
        raise _Unusable(f"its name is longer than {NAME_CHARACTERS_MAX} characters or holds control characters")
    if name in ambiguous:
        raise _Unusable("the server lists different tools by this name")
    listed = ListedTool(
        server=server,
        name=name,
        title=_text(raw, "title"),
        description=_text(raw, "description"),
        input_schema=_input_schema(raw.get("inputSchema")),
        output_schema=_output_schema(raw.get("outputSchema")),
        annotations=_annotations(raw.get("annotations")),
    )
    try:
        definition_digest(listed)
    except NotCanonical as error:
        raise _Unusable(f"its definition has no canonical form: {error}") from error
    return listed


def _text(raw: Mapping[str, Any], key: str) -> str:
    """Whole or not at all: a description cut here would be approved without its end."""
    text = raw.get(key)
    if text is None:
        return ""
    if not isinstance(text, str) or "\0" in text:
        raise _Unusable(f"its {key} is no text, or holds NUL bytes")
    if len(text) > DESCRIPTION_CHARACTERS_MAX:
        raise _Unusable(f"its {key} has more than {DESCRIPTION_CHARACTERS_MAX} characters")
    return text


def _input_schema(schema: object) -> dict[str, Any]:
    if not isinstance(schema, dict) or schema.get("type") != "object":
        raise _Unusable("its input schema is not that of an object")
    _refuse_if_large(schema, SCHEMA_BYTES_MAX, "input schema")
    if problems := schema_problems(schema):
        raise _Unusable(problems[0])
    return schema


def _output_schema(schema: object) -> dict[str, Any] | None:
    """Only a help to check results with: without it the tool is still usable."""
    if not isinstance(schema, dict):
        return None
    try:
        _refuse_if_large(schema, SCHEMA_BYTES_MAX, "output schema")
    except _Unusable:
        return None
    return None if schema_problems(schema) else schema


def _annotations(annotations: object) -> dict[str, Any]:
    if not isinstance(annotations, dict):
        return {}
    _refuse_if_large(annotations, ANNOTATIONS_BYTES_MAX, "annotations")
    return annotations


def _refuse_if_large(value: Mapping[str, Any], bytes_max: int, what: str) -> None:
    try:
        text = json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError) as error:
        raise _Unusable(f"its {what} cannot be written as JSON") from error
    if "\\u0000" in text:
        raise _Unusable(f"its {what} holds NUL bytes")
    if (size := len(text)) > bytes_max:
        raise _Unusable(f"its {what} has {size} bytes; at most {bytes_max} are allowed")


def _shown(name: object) -> str:
    text = name if isinstance(name, str) else type(name).__name__
    return repr(text[:80])

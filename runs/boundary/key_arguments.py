"""The operation's id inside a call's arguments, for servers that know no keys; put in before they are hashed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from runs.models import Tool

TEMPLATE = "{value}\n\nOperation-Id: {operation_id}"
VALUE = "{value}"


def with_key(tool: Tool, arguments: Mapping[str, Any], operation_id: UUID) -> dict[str, Any]:
    """The final arguments: the operation's id stands in the one that the tool declares."""
    final = dict(arguments)
    if tool.key_argument:
        final[tool.key_argument] = _filled(tool, operation_id).replace(VALUE, str(final.get(tool.key_argument, "")))
    return final


def without_key(tool: Tool, arguments: Mapping[str, Any], operation_id: UUID) -> dict[str, Any]:
    """The arguments as they were before `with_key`, as far as the id stands where it put it."""
    plain = dict(arguments)
    value = plain.get(tool.key_argument)
    if not tool.key_argument or not isinstance(value, str):
        return plain
    before, placed, after = _filled(tool, operation_id).partition(VALUE)
    if not placed and value == before:
        del plain[tool.key_argument]
    elif placed and value.startswith(before) and value.endswith(after) and len(value) >= len(before) + len(after):
        plain[tool.key_argument] = value[len(before) : len(value) - len(after)]
        if not plain[tool.key_argument] and tool.key_argument not in tool.input_schema.get("required", ()):
            del plain[tool.key_argument]
    return plain


def _filled(tool: Tool, operation_id: UUID) -> str:
    return (tool.key_template or TEMPLATE).replace("{operation_id}", str(operation_id))

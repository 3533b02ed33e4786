"""Placeholders in what an operator declares: `{operation_id}`, `{argument:order.id}` and the like. Fills each once.

What a placeholder stands for is data of a model or a server: it is never looked at again for placeholders.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from runs.boundary.contracts import Dispatch, NotSent

PLACEHOLDER = re.compile(r"\{(?:(operation_id|workspace|arguments)|(argument|result):([A-Za-z0-9_.-]{1,200})(\??))\}")
_LEFT_OUT = object()


@dataclass(frozen=True)
class Values:
    """What the placeholders of one call stand for. `result` is an earlier call's, where one is asked for."""

    operation_id: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    workspace: str = ""
    result: Any = None


class Missing(NotSent):
    """A placeholder names what the call does not have."""


def values_of(dispatch: Dispatch) -> Values:
    """The values of a call that is to be made, or to be looked for."""
    return Values(dispatch.idempotency_key, dispatch.arguments, dispatch.workspace)


def filled(value: Any, values: Values) -> Any:
    """The value with its placeholders replaced.

    A text that is nothing but one placeholder becomes the value itself, of whatever type. `{argument:note?}` may be
    absent: alone, it leaves out its member or item; inside a text it is empty. Raises Missing for others.
    """
    found = _filled(value, values)
    return None if found is _LEFT_OUT else found


def _filled(value: Any, values: Values) -> Any:
    match value:
        case str():
            whole = PLACEHOLDER.fullmatch(value)
            return _stands_for(whole, values) if whole is not None else substituted(value, values)
        case dict():
            members = {key: _filled(member, values) for key, member in value.items()}
            return {key: member for key, member in members.items() if member is not _LEFT_OUT}
        case list() | tuple():
            return [item for item in (_filled(item, values) for item in value) if item is not _LEFT_OUT]
    return value


def substituted(text: str, values: Values, quoted: Callable[[str], str] = str) -> str:
    """The text with its placeholders replaced by texts; `quoted` makes each of them fit for its place."""
    return PLACEHOLDER.sub(lambda match: quoted(as_text(_stands_for(match, values))), text)


def names_in(value: Any) -> list[str]:
    """The placeholders that stand in a declaration, as they are written."""
    match value:
        case str():
            return [match.group() for match in PLACEHOLDER.finditer(value)]
        case dict():
            return [name for member in value.values() for name in names_in(member)]
        case list() | tuple():
            return [name for item in value for name in names_in(item)]
    return []


def as_text(value: Any) -> str:
    """A value inside a text: a string as it is, what was left out as nothing, anything else as JSON writes it."""
    if value is _LEFT_OUT:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _stands_for(match: re.Match[str], values: Values) -> Any:
    name, source, path, optional = match.groups()
    match name:
        case "operation_id":
            return values.operation_id
        case "workspace":
            return values.workspace
        case "arguments":
            return dict(values.arguments)
    value: Any = values.arguments if source == "argument" else values.result
    for part in path.split("."):
        found, value = _step(value, part)
        if not found:
            if optional:
                return _LEFT_OUT
            raise Missing(f"{match.group()} stands for nothing: the {source} has no {path!r}")
    return value


def _step(value: Any, part: str) -> tuple[bool, Any]:
    if isinstance(value, Mapping) and part in value:
        return True, value[part]
    if isinstance(value, Sequence) and not isinstance(value, str) and part.isdecimal() and int(part) < len(value):
        return True, value[int(part)]
    return False, None

"""Arguments that a tool declares as secret: sealed before anything keeps them, opened for the effect alone.

What is stored, hashed, shown and approved has a word in the place of the value: the same word for the same value, so
that twins are known and an approval is bound to it. A value from the environment or a file is named, never kept.
"""

from __future__ import annotations

import copy
import hashlib
import hmac
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kernel_project.primitives import keyring
from runs.boundary import objects
from runs.boundary.contracts import Dispatch, EffectResult, NotSent
from runs.boundary.mcp_config import FromEnv, FromFile, ValueMissing, resolve
from runs.boundary.models.arguments import ArgumentsError, parse_arguments
from runs.boundary.models.contracts import ModelAnswer, ToolCall
from runs.models import Tool

SEALED, NAMED, LOST = "secret:sealed:", "secret:named:", "secret:lost"
WORD = re.compile(rf"{SEALED}[A-Za-z0-9][A-Za-z0-9._-]{{0,31}}:[A-Za-z0-9_=-]+", re.ASCII)
KEY_OF_WORD = re.compile(rf"{SEALED}([A-Za-z0-9][A-Za-z0-9._-]{{0,31}}):", re.ASCII)
PATHS_MAX = 20
UNREADABLE = "[arguments that could not be read, of a tool with secret ones, are not kept]"
ECHO = "[arguments that repeat a secret value of another call are not kept: leave the value out of this one]"
TEXT_LEFT_OUT = "[the text beside arguments that could not be read, of a tool with secret ones, is not kept]"
MARK = "[a secret argument]"
VALUE_CHARS_MIN = 4  # of which an echo is hidden: shorter ones are in any sentence
Path = Annotated[str, Field(min_length=1, max_length=200)]


class Plain(BaseModel):
    """The model writes the value; it is sealed."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Declared(BaseModel):
    """The part of a tool's configuration that says which arguments are secret, and where their values come from."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    secret_arguments: Annotated[dict[Path, FromEnv | FromFile | Plain], Field(max_length=PATHS_MAX)] = {}


def declared(configuration: Mapping[str, Any]) -> dict[str, FromEnv | FromFile | Plain]:
    """Paths (`auth.password`) of the secret arguments. Raises ValueError for a declaration that cannot be read."""
    if "secret_arguments" not in configuration:
        return {}
    try:
        return Declared.model_validate(configuration).secret_arguments
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ValueError(f"the tool's configuration cannot be read: {where}: {first['msg']}") from None


def without_secrets(answer: ModelAnswer, tools: Sequence[Tool]) -> ModelAnswer:
    """A model's answer as it may be kept: its calls with words for secret values, its text with marks."""
    found = {tool.exposed_name: tool for tool in tools if "secret_arguments" in tool.configuration}
    if not any(call.name in found for call in answer.calls):
        return answer
    values: list[str] = []
    calls = [_call(call, found[call.name], values) if call.name in found else call for call in answer.calls]
    calls = [call if call.name in found else _echoed(call, values) for call in calls]
    unreadable = any(call.arguments == UNREADABLE for call in calls)
    text = TEXT_LEFT_OUT if unreadable and answer.text else _without(answer.text, values)
    return answer.model_copy(update={"calls": tuple(calls), "text": text})


def _echoed(call: ToolCall, values: list[str]) -> ToolCall:
    """Another call of the answer: one that repeats a secret value is not kept, and so not made with another value."""
    if _without(call.arguments, values) == call.arguments:
        return call
    return call.model_copy(update={"arguments": ECHO})


def _call(call: ToolCall, tool: Tool, values: list[str]) -> ToolCall:
    given = parse_arguments(call.arguments)
    if isinstance(given, ArgumentsError):
        return call.model_copy(update={"arguments": UNREADABLE})
    try:
        values.extend(_values(tool.configuration, given))
        kept = sealed(tool, given)
    except keyring.KeyUnavailable:
        kept = _lost(tool, given)
    except ValueError:  # an unreadable declaration: the call is refused for it, and nothing of it is kept
        kept = {}
    return call.model_copy(update={"arguments": json.dumps(kept)})


def sealed(tool: Tool, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments with a word for each secret value. What is such a word already stays.

    Raises KeyUnavailable for a word whose key is not configured: it is no value, and must not leave as one.
    """
    final = copy.deepcopy(dict(arguments))
    for path, source in declared(tool.configuration).items():
        place = _place(final, path, make=not isinstance(source, Plain))
        if place is None:
            continue
        holder, name = place
        if not isinstance(source, Plain):
            holder[name] = f"{NAMED}{path}"
        elif name in holder and not _is_word(holder[name], tool, path):
            holder[name] = _word(holder[name], tool, path)
    return final


def _lost(tool: Tool, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call that cannot be made: nothing is kept of what is secret in them."""
    final = copy.deepcopy(dict(arguments))
    for path in declared(tool.configuration):
        if (place := _place(final, path)) and place[1] in place[0]:
            place[0][place[1]] = LOST
    return final


def _word(value: Any, tool: Tool, path: str) -> str:
    try:
        return SEALED + objects.keys().seal_alike(json.dumps(value), _about(tool, path))
    except keyring.KeyUnavailable:
        return LOST


def _is_word(value: Any, tool: Tool, path: str) -> bool:
    if value == LOST:
        return True
    if not isinstance(value, str) or not WORD.fullmatch(value):
        return False
    try:
        _opened(value, tool, path)
    except keyring.Damaged:
        return False
    return True


def _opened(word: str, tool: Tool, path: str) -> Any:
    return json.loads(objects.keys().open_alike(word.removeprefix(SEALED), _about(tool, path)))


def _about(tool: Tool, path: str) -> str:
    """Where a word opens: in that argument of that tool of that project alone."""
    return json.dumps([tool.project_id, tool.name, path])


def as_checked(tool: Tool, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """What is compared with the schema: sealed values opened. Named ones stay names, nobody reads them for that."""
    return _open_all(tool, arguments, lambda _: None)[0]


@dataclass(frozen=True)
class Opened:
    """A dispatch as its adapter gets it, and what must not be repeated of it."""

    dispatch: Dispatch
    values: tuple[str, ...] = ()

    def hidden(self, text: str) -> str:
        """The text with a mark in the place of each secret value."""
        return _without(text, self.values)

    def result(self, answered: EffectResult) -> EffectResult:
        """The answer without the secret values that the other side repeats."""
        if not self.values:
            return answered
        structured = answered.structured
        if structured is not None:
            structured = _without_in(structured, self.values)
        return answered.model_copy(update={"text": self.hidden(answered.text), "structured": structured})


def opened(given: Dispatch) -> Opened:
    """The dispatch with its secret values, for the effect. Raises NotSent if one cannot be had."""
    tool = given.record.tool if given.record is not None else None
    if tool is None or "secret_arguments" not in tool.configuration:
        return Opened(given)
    try:
        arguments, values = _open_all(tool, given.arguments, resolve)
    except (ValueMissing, ValueError, keyring.KeyUnavailable, keyring.Damaged) as error:
        raise NotSent(f"a secret argument cannot be had: {getattr(error, 'message', error)}") from None
    return Opened(replace(given, arguments=arguments), tuple(values))


def open_place(tool: Tool, arguments: Mapping[str, Any]) -> str:
    """The first argument that has a secret's word or mark without being secret itself; "" if there is none.

    A marked one is that too where it is secret: its value is not known any more.
    """
    rest = copy.deepcopy(dict(arguments))
    for path, source in declared(tool.configuration).items():
        place = _place(rest, path)
        value = place[0].pop(place[1], None) if place else None
        if isinstance(source, Plain) and _has(value, (NAMED, LOST, MARK)):
            return path
    return next((name for name, value in rest.items() if _has(value, (SEALED, NAMED, LOST, MARK))), "")


def _has(value: Any, parts: Sequence[str]) -> bool:
    return any(part in text for text in _texts(value) for part in parts)


def comparable(tool: Tool, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """What twins are known by: sealed arguments, with hashes for words that do not change with ARTIFACT_KEYS."""
    final = copy.deepcopy(dict(arguments))
    for path, source in declared(tool.configuration).items():
        place = _place(final, path) if isinstance(source, Plain) else None
        if place is not None and place[1] in place[0] and place[0][place[1]] != LOST:
            place[0][place[1]] = _alike(tool, path, _opened(place[0][place[1]], tool, path))
    return final


def _alike(tool: Tool, path: str, value: Any) -> str:
    text = json.dumps([_about(tool, path), value], sort_keys=True)
    return "secret:alike:" + hmac.new(objects.alike_key(), text.encode(), hashlib.sha256).hexdigest()


def _open_all(
    tool: Tool, arguments: Mapping[str, Any], read: Callable[[Any], str | None]
) -> tuple[dict[str, Any], list[str]]:
    final = copy.deepcopy(dict(arguments))
    values: list[str] = []
    for path, source in declared(tool.configuration).items():
        place = _place(final, path)
        value = place[0].get(place[1]) if place else None
        if place is None or not isinstance(value, str):
            continue
        if value == LOST:
            raise keyring.KeyUnavailable("its key was not in ARTIFACT_KEYS when the call was made, so it was not kept")
        if value.startswith(SEALED):
            value = _opened(value, tool, path)
        elif value == f"{NAMED}{path}" and not isinstance(source, Plain):
            value = read(source) or value
        place[0][place[1]] = value
        values.extend(_texts(value))
    return final, values


def _values(configuration: Mapping[str, Any], arguments: Mapping[str, Any]) -> Iterator[str]:
    for path in declared(configuration):
        if place := _place(dict(arguments), path):
            yield from _texts(place[0].get(place[1]))


def _place(arguments: dict[str, Any], path: str, *, make: bool = False) -> tuple[dict[str, Any], str] | None:
    """The object that a path ends in, and the name there."""
    *way, name = path.split(".")
    holder: Any = arguments
    for part in way:
        if make and isinstance(holder, dict):
            holder.setdefault(part, {})
        holder = holder.get(part) if isinstance(holder, dict) else None
    return (holder, name) if isinstance(holder, dict) else None


def _texts(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case dict():
            for member in value.values():
                yield from _texts(member)
        case list():
            for member in value:
                yield from _texts(member)
        case int() | float() if not isinstance(value, bool):
            yield str(value)


def _without(text: str, values: Sequence[str]) -> str:
    for value in sorted(set(values), key=len, reverse=True):
        if len(value) >= VALUE_CHARS_MIN:
            for form in (value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]):
                text = text.replace(form, MARK)
    return text


def _without_in(value: Any, values: Sequence[str]) -> Any:
    match value:
        case str():
            return _without(value, values)
        case dict():
            return {_without(str(name), values): _without_in(member, values) for name, member in value.items()}
        case list():
            return [_without_in(member, values) for member in value]
        case int() | float() if not isinstance(value, bool) and str(value) in values:
            return MARK
    return value

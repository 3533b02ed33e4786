"""Do the arguments of a call fit the tool's input schema? Asked before anything is dispatched.

The schema is written by a tool server and the arguments by a model: neither may make the kernel fetch, hang or recurse.
No reference leaves the schema, patterns run on an engine whose time is linear, and the work is counted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from functools import lru_cache
from typing import Any

from jsonschema import Draft4Validator, Draft6Validator, Draft7Validator, Draft201909Validator, Draft202012Validator
from jsonschema.exceptions import SchemaError, UnknownType, ValidationError
from jsonschema.validators import extend
from referencing import Registry
from referencing.exceptions import Unresolvable

from kernel_project.primitives import patterns
from kernel_project.primitives.canonical import NotCanonical, canonical_json
from runs.boundary import echoes

ERRORS_MAX = 10  # more of them tell a model nothing new
ERROR_CHARACTERS_MAX = 300
TAIL_CHARACTERS = 100  # of a longer error: the value stands first, and what is wrong with it last
SCHEMA_CHARACTERS_MAX = 256 * 1024  # a registered schema is smaller; see `mcp_tools`
ARGUMENTS_CHARACTERS_MAX = 4 * 1024 * 1024
STEPS_MAX = 50_000  # keywords evaluated for one call, about 25 µs each; references that double per level need 2^n
SCHEMAS_MAX = 256  # checked schemas kept, with their texts

Keyword = Callable[[Any, Any, Any, Any], Iterator[ValidationError]]


class _TooMuchWork(Exception):
    pass


_steps_left: ContextVar[int] = ContextVar("steps_left", default=0)


def validate_arguments(schema: Mapping[str, Any], arguments: Any) -> list[str]:
    """What is wrong, one sentence each, at most ERRORS_MAX; empty if the arguments fit.

    A schema that cannot be used (broken, too large, pointing outside itself) is an error too: nothing is let through
    unchecked.
    """
    text, problem = _written(schema, SCHEMA_CHARACTERS_MAX, "schema")
    if not problem:
        _, problem = _written(arguments, ARGUMENTS_CHARACTERS_MAX, "arguments")
    if not problem:
        problem = _unusable(text)
    if problem:
        return [problem]
    return _sentence_of(lambda: _sentences(_validator(text).iter_errors(arguments)))


def schema_problems(schema: Mapping[str, Any]) -> list[str]:
    """What makes this schema unusable; asked once, when a tool is registered."""
    text, problem = _written(schema, SCHEMA_CHARACTERS_MAX, "schema")
    if not problem:
        problem = _unusable(text)
    return [problem] if problem else []


@lru_cache(maxsize=SCHEMAS_MAX)
def _unusable(text: str) -> str:
    """What is wrong with a schema itself, if anything is; the answer does not depend on the arguments."""
    problems = _sentence_of(lambda: _checked(text))
    return problems[0] if problems else ""


def _checked(text: str) -> list[str]:
    schema = json.loads(text)
    _DIALECTS.get(_dialect(schema), _DIALECTS[""]).check_schema(schema)
    return []


@lru_cache(maxsize=SCHEMAS_MAX)
def _validator(text: str) -> Any:
    schema = json.loads(text)
    return _DIALECTS.get(_dialect(schema), _DIALECTS[""])(schema, registry=Registry())


def _sentence_of(ask: Callable[[], list[str]]) -> list[str]:
    """Ask one question of a schema, turning every way in which it can misbehave into a sentence."""
    _steps_left.set(STEPS_MAX)
    try:
        return ask()
    except SchemaError as error:
        return [_cut(f"the tool's schema is not valid JSON Schema: {error.message}")]
    except Unresolvable as error:
        return [_cut(f"the tool's schema refers to {error.ref!r}, which is not part of it")]
    except _TooMuchWork:
        return [f"the tool's schema needs more than {STEPS_MAX} steps to check"]
    except RecursionError:
        return ["the tool's schema is nested too deeply, or refers to itself without end"]
    except (UnknownType, NotCanonical, TypeError, ValueError, AttributeError, KeyError, OverflowError) as error:
        return [_cut(f"the tool's schema cannot be used: {type(error).__name__}")]


def _written(value: Any, characters_max: int, what: str) -> tuple[str, str]:
    """The value as JSON, or what keeps it from being that."""
    try:
        text = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        return "", _cut(f"the {what} cannot be written as JSON: {error}")
    if len(text) > characters_max:
        return "", f"the {what} has {len(text)} characters; at most {characters_max} are allowed"
    return text, ""


def _dialect(schema: Mapping[str, Any]) -> str:
    named = schema.get("$schema")
    return named.rstrip("#") if isinstance(named, str) else ""


def _sentences(errors: Iterator[ValidationError]) -> list[str]:
    found: list[str] = []
    for error in errors:
        if len(found) == ERRORS_MAX:
            return [*found, "there are more errors"]
        found.append(_cut(f"{error.json_path}: {_without_value(error)}"))
    return found


def _without_value(error: ValidationError) -> str:
    """The library's sentence about a value, without the value: who reads of a failure may not read arguments."""
    if error.validator in ("unevaluatedItems", "items"):
        return "there are items that the schema does not allow"
    return echoes.without(error.message.replace(repr(error.instance), "the value"), error.instance)


def _cut(text: str) -> str:
    """Short, on one line, and free of half surrogates: it goes to a model, into rows and onto pages."""
    readable = " ".join(text.encode("utf-8", "backslashreplace").decode().split())
    if len(readable) <= ERROR_CHARACTERS_MAX:
        return readable
    return f"{readable[: ERROR_CHARACTERS_MAX - TAIL_CHARACTERS - 3]} … {readable[-TAIL_CHARACTERS:]}"


def _counted(keyword: Keyword) -> Keyword:
    def counted(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
        _step()
        for error in keyword(validator, value, instance, schema) or ():
            _step()
            yield error

    return counted


def _step() -> None:
    left = _steps_left.get() - 1
    if left < 0:
        raise _TooMuchWork
    _steps_left.set(left)


def _found(pattern: str, text: str) -> bool:
    """A pattern with look-around is not checked here: only a back-tracking engine could. The server checks it."""
    compiled = patterns.compiled(pattern)
    return compiled is None or bool(compiled.isinstance_python(text))


def _pattern(validator: Any, pattern: Any, instance: Any, _schema: Any) -> Iterator[ValidationError]:
    if validator.is_type(instance, "string") and not _found(pattern, instance):
        yield ValidationError(f"the value does not match {pattern!r}")


def _pattern_properties(validator: Any, patterns: Any, instance: Any, _schema: Any) -> Iterator[ValidationError]:
    if not validator.is_type(instance, "object"):
        return
    for pattern, subschema in patterns.items():
        for name, value in instance.items():
            _step()
            if _found(pattern, name):
                yield from validator.descend(value, subschema, path=name, schema_path=pattern)


def _additional_properties(validator: Any, allowed: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if not validator.is_type(instance, "object"):
        return
    known, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    for name, value in instance.items():
        _step()
        if name in known or any(_found(pattern, name) for pattern in patterns):
            continue
        if allowed is False:
            yield ValidationError(f"additional property {name!r} is not allowed")
        elif validator.is_type(allowed, "object"):
            yield from validator.descend(value, allowed, path=name)


def _unique_items(validator: Any, unique: Any, instance: Any, _schema: Any) -> Iterator[ValidationError]:
    """By canonical text, in one pass; comparing each item with each other one is quadratic."""
    if unique and validator.is_type(instance, "array"):
        texts = [canonical_json(item) for item in instance]
        if len(set(texts)) != len(texts):
            yield ValidationError("the items are not all different")


def _unevaluated(keyword: Keyword) -> Keyword:
    def checked(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
        # The library's own search for evaluated names runs the patterns on the back-tracking engine.
        if '"patternProperties"' in json.dumps(schema):
            raise ValueError("unevaluatedProperties beside patternProperties")
        yield from keyword(validator, value, instance, schema)

    return checked


def _hardened(kind: Any) -> Any:
    keywords = {name: _counted(keyword) for name, keyword in kind.VALIDATORS.items()}
    ours = {
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
        "uniqueItems": _unique_items,
    }
    keywords |= {name: _counted(keyword) for name, keyword in ours.items()}
    if "unevaluatedProperties" in keywords:
        keywords["unevaluatedProperties"] = _unevaluated(keywords["unevaluatedProperties"])
    return extend(kind, keywords)  # type: ignore[no-untyped-call]


_DIALECTS: dict[str, Any] = {
    "": _hardened(Draft202012Validator),
    "https://json-schema.org/draft/2020-12/schema": _hardened(Draft202012Validator),
    "https://json-schema.org/draft/2019-09/schema": _hardened(Draft201909Validator),
    "http://json-schema.org/draft-07/schema": _hardened(Draft7Validator),
    "http://json-schema.org/draft-06/schema": _hardened(Draft6Validator),
    "http://json-schema.org/draft-04/schema": _hardened(Draft4Validator),
}

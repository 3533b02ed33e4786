"""Reading the arguments that a model wrote: strict JSON, one object, or a reason why not. Never guesses a repair."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

from kernel_project.primitives.canonical import NotCanonical, canonical_json

ARGUMENTS_CHARACTERS_MAX = 4 * 1024 * 1024  # beyond what any model can write in one answer
REASON_CHARACTERS_MAX = 200  # the reason goes back to the model


@dataclass(frozen=True)
class ArgumentsError:
    """The arguments cannot be used; `reason` is a sentence that the model can act on."""

    reason: str


def parse_arguments(raw: str | None) -> dict[str, Any] | ArgumentsError:
    """The arguments as an object with a canonical form, or the reason why there is none.

    Nothing, blank text and `null` are `{}`. A name that occurs twice, NaN, infinities, numbers too large, half
    surrogate pairs and nesting deeper than canonical JSON allows are refused: whoever approves the call and whoever
    runs it must read the same value.
    """
    if raw is None or not raw.strip():
        return {}
    if len(raw) > ARGUMENTS_CHARACTERS_MAX:
        return ArgumentsError(f"the arguments are longer than {ARGUMENTS_CHARACTERS_MAX} characters")
    try:
        value = json.loads(
            raw, object_pairs_hook=_object, parse_constant=_refuse_constant, parse_float=_finite, parse_int=_integer
        )
        canonical_json(value)
    except NotCanonical as error:
        return _error(error.message)
    except RecursionError:
        return _error("the arguments are nested too deeply")
    except ValueError as error:
        return _error(f"the arguments are not valid JSON: {error}")
    if value is None:
        return {}
    if not isinstance(value, dict):
        return _error(f"the arguments must be a JSON object, not {_JSON_NAMES[type(value)]}")
    return value


_JSON_NAMES = {list: "a list", str: "a string", int: "a number", float: "a number", bool: "true or false"}


def _error(reason: str) -> ArgumentsError:
    printable = "".join(letter if letter.isprintable() else "�" for letter in reason)
    return ArgumentsError(printable[:REASON_CHARACTERS_MAX])


def _object(members: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(members)
    if len(value) != len(members):
        seen: set[str] = set()
        twice = next(name for name, _ in members if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"the name {twice[:60]!r} occurs twice in one object")
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number is too large")
    return number


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:  # Python's own limit on digits, whose message would teach the model about Python
        raise ValueError("an integer has too many digits") from None

"""Conditions of a rule on a call's arguments: which values they look at, and whether those fit.

The arguments are hostile: what one look costs is bounded, patterns run on an engine whose time is linear, and a value
that cannot be judged never helps the call: it fits a rule that denies or asks, and does not fit one that allows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from itertools import chain
from typing import Any, Literal

from kernel_project.primitives import patterns
from kernel_project.primitives.canonical import NotCanonical, canonical_json, parse_json
from kernel_project.primitives.errors import Invalid

CONDITIONS_MAX = 10  # of one rule
CONDITIONS_CHARS_MAX = 20_000  # of all of them as canonical JSON
PATH_CHARS_MAX = 200
VALUES_MAX = 500  # that one `in` names
PATTERN_CHARS_MAX = 300
REPEATS_MAX = 1_000  # all counts of a pattern multiplied: what its compiled form grows by
TEXT_CHARS_MAX = 10_000  # a longer text is not matched against a pattern: it cannot be judged
FOUND_MAX = 1_000  # values that one path may lead to; more cannot be judged
PARSED_MAX = 1_024  # parsed conditions that are kept
EVERY = "*"  # the step `[*]`
NOWHERE = object()  # where a branch of a path ends for want of the member or item that it names

STEP = re.compile(r"""\.([^.\[\]'"\s]+)|\[(\d{1,6}|\*)\]|\["([^"]+)"\]|\['([^']+)'\]""")
COUNTED = re.compile(r"\{(\d*)(?:,(\d*))?\}")
DECIMAL = re.compile(r"-?\d{1,30}(\.\d{1,30})?", re.ASCII)

Kind = Literal["equals", "in", "range", "pattern"]
KINDS: tuple[Kind, ...] = ("equals", "in", "range", "pattern")
Step = tuple[Literal["name", "index", "every"], str | int]


@dataclass(frozen=True)
class Condition:
    """One of a rule's conditions; all of them must hold. `values` are canonical texts, for `equals` and `in`."""

    path: tuple[Step, ...]
    kind: Kind
    values: frozenset[str] = frozenset()
    low: Decimal | None = None
    high: Decimal | None = None
    pattern: str = ""


def canonical(conditions: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The same conditions in the one form in which they are stored. Raises Invalid with what is wrong."""
    try:
        text = canonical_json(list(conditions))
    except NotCanonical as error:
        raise Invalid(f"the conditions cannot be written as JSON: {error.message}") from None
    if len(text) > CONDITIONS_CHARS_MAX:
        raise Invalid(f"the conditions have {len(text)} characters; at most {CONDITIONS_CHARS_MAX} are allowed")
    parsed(text)
    stored: list[dict[str, Any]] = parse_json(text)
    return stored


@lru_cache(maxsize=PARSED_MAX)
def parsed(text: str) -> tuple[Condition, ...]:
    """The conditions of this canonical text. Raises Invalid for what is none."""
    listed = parse_json(text)
    if not isinstance(listed, list) or len(listed) > CONDITIONS_MAX:
        raise Invalid(f"conditions on arguments are a list of at most {CONDITIONS_MAX}")
    return tuple(_condition(one) for one in listed)


def _condition(given: Any) -> Condition:
    if not isinstance(given, dict) or not isinstance(given.get("path"), str):
        raise Invalid("a condition names a path and one of equals, in, range, pattern")
    path, kinds = given["path"], [name for name in given if name != "path"]
    if len(kinds) != 1 or kinds[0] not in KINDS:
        raise Invalid(f"the condition on {path[:80]!r} must have exactly one of {', '.join(KINDS)}")
    kind: Kind = kinds[0]
    steps, value = _steps(path), given[kind]
    match kind:
        case "equals":
            return Condition(steps, "in", frozenset({canonical_json(value)}))
        case "in":
            return Condition(steps, "in", _values(path, value))
        case "range":
            return Condition(steps, "range", low=_bound(path, value, "min"), high=_bound(path, value, "max"))
        case "pattern":
            return Condition(steps, "pattern", pattern=_checked_pattern(path, value))


def _steps(path: str) -> tuple[Step, ...]:
    """`$.order.items[*].price`; the leading `$` may be left out."""
    if len(path) > PATH_CHARS_MAX:
        raise Invalid(f"a path has at most {PATH_CHARS_MAX} characters")
    rest = path.removeprefix("$") if path.startswith("$") else path if path.startswith("[") else f".{path}"
    steps: list[Step] = []
    while rest:
        found = STEP.match(rest)
        if found is None:
            raise Invalid(f"the path {path!r} is none: write $.name, $.list[0], $.list[*] or $['any name']")
        rest = rest[found.end() :]
        steps.append(_step(found))
    if not steps:
        raise Invalid("a path must lead into the arguments: $.name")
    return tuple(steps)


def _step(found: re.Match[str]) -> Step:
    plain, index, double, single = found.groups()
    if index is not None:
        return ("every", EVERY) if index == EVERY else ("index", int(index))
    return "name", plain or double or single


def _values(path: str, given: Any) -> frozenset[str]:
    if not isinstance(given, list) or not 0 < len(given) <= VALUES_MAX:
        raise Invalid(f"`in` of the condition on {path!r} is a list of 1 to {VALUES_MAX} values")
    return frozenset(map(canonical_json, given))


def _bound(path: str, given: Any, name: Literal["min", "max"]) -> Decimal | None:
    if not isinstance(given, dict) or not given or set(given) - {"min", "max"}:
        raise Invalid(f"`range` of the condition on {path!r} has min, max or both; both count as inside")
    if name not in given:
        return None
    number = _number(given[name])
    if number is None:
        raise Invalid(f"{name} of the condition on {path!r} is not a number")
    low, high = (_number(given[end]) if end in given else None for end in ("min", "max"))
    if low is not None and high is not None and low > high:
        raise Invalid(f"nothing can be in the range of the condition on {path!r}")
    return number


def _checked_pattern(path: str, given: Any) -> str:
    if not isinstance(given, str) or not 0 < len(given) <= PATTERN_CHARS_MAX:
        raise Invalid(f"the pattern on {path!r} is a text of 1 to {PATTERN_CHARS_MAX} characters")
    repeats = 1
    for found in COUNTED.finditer(given):
        repeats *= max(
            int(count) if len(count) <= 6 else REPEATS_MAX + 1 for count in (*found.groups("0"), "1") if count
        )
    if repeats > REPEATS_MAX:
        raise Invalid(f"the counts of the pattern on {path!r} multiply to more than {REPEATS_MAX}")
    for text in (given, _whole(given)):  # by itself too: `a)|(b` would break out of the group
        if patterns.compiled(text) is None:
            raise Invalid(f"the pattern on {path!r} cannot be used; it has the syntax of Rust, without look-around")
    return given


def _whole(pattern: str) -> str:
    """The pattern over the whole text, in which a dot is any character."""
    return rf"(?s)\A(?:{pattern})\z"


def hold(conditions: Sequence[Condition], arguments: Any, *, careful: bool) -> bool:
    """Whether all conditions hold for these arguments.

    `careful` is for rules that deny or ask: there one fitting value among those that `[*]` leads to is enough, and a
    value that cannot be judged fits. Otherwise every value must fit, and each branch must lead to one: an item without
    the member that is asked about, or an empty list, does not fit. A path that leads nowhere fits neither.
    """
    return all(_holds(condition, arguments, careful=careful) for condition in conditions)


def _holds(condition: Condition, arguments: Any, *, careful: bool) -> bool:
    found = _find(arguments, condition.path)
    if found is None:
        return careful
    if careful:
        return any(value is not NOWHERE and _judge(condition, value) is not False for value in found)
    return all(value is not NOWHERE and _judge(condition, value) is True for value in found)


def _find(arguments: Any, path: Sequence[Step]) -> list[Any] | None:
    """What the path leads to, by branch, NOWHERE where one ends early; None when that is too much to look at."""
    found = [arguments]
    for kind, key in path:
        if kind == "every":
            if sum(len(one) for one in found if isinstance(one, list)) > FOUND_MAX:
                return None
            found = list(chain.from_iterable(one if isinstance(one, list) and one else [NOWHERE] for one in found))
        else:
            found = [_follow(one, key) for one in found]
    return found


def _follow(value: Any, key: str | int) -> Any:
    match value, key:
        case dict(), str():
            return value.get(key, NOWHERE)
        case list(), int() if key < len(value):
            return value[key]
    return NOWHERE


def _judge(condition: Condition, value: Any) -> bool | None:
    """Whether a value fits; None if it is of a kind that cannot be judged."""
    match condition.kind:
        case "range":
            number = _number(value)
            return None if number is None else _inside(condition, number)
        case "pattern":
            engine = patterns.compiled(_whole(condition.pattern))
            if engine is None or not isinstance(value, str) or len(value) > TEXT_CHARS_MAX:
                return None
            return bool(engine.isinstance_python(value))
    return canonical_json(value) in condition.values


def _inside(condition: Condition, number: Decimal) -> bool:
    above = condition.low is None or number >= condition.low
    return above and (condition.high is None or number <= condition.high)


def _number(value: Any) -> Decimal | None:
    """A JSON number, or a text that is plainly a decimal one, exactly."""
    match value:
        case bool():
            return None
        case int():
            return Decimal(value)
        case float():
            return Decimal(repr(value))
        case str() if DECIMAL.fullmatch(value):
            return Decimal(value)
    return None


def imply(mine: Sequence[Condition], others: Sequence[Condition]) -> bool:
    """Whether arguments that fit `mine` fit the others as well, as far as that is plain to see."""
    return all(any(_implies(one, other) for one in mine) for other in others)


def _implies(one: Condition, other: Condition) -> bool:
    if one == other:
        return True
    if one.path != other.path or ("every", EVERY) in one.path:
        return False
    if one.kind == "in":
        return all(_judge(other, parse_json(text)) is True for text in one.values)
    if one.kind == other.kind == "range":
        above = other.low is None or (one.low is not None and one.low >= other.low)
        return above and (other.high is None or (one.high is not None and one.high <= other.high))
    return False

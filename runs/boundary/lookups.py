"""Look-ups that tell whether a call took effect: how the effect is recognised in a text, and what that proves."""

from __future__ import annotations

import re
from typing import Annotated, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from runs.boundary.contracts import EffectResult, ProbeAnswer, ProbeVerdict
from runs.boundary.placeholders import PLACEHOLDER, Values, substituted

EXCERPT_CHARACTERS_MAX = 2000

Model = TypeVar("Model", bound=BaseModel)


class Found(BaseModel):
    """What one occurrence of the effect looks like in the look-up's text: a piece of text, or a pattern."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    contains: str = ""
    regex: str = ""

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if bool(self.contains) == bool(self.regex):
            raise ValueError("say either `contains` or `regex`")
        return _with_valid_pattern(self, self.regex)

    def places(self, text: str, values: Values) -> list[int]:
        """Where the effect is seen."""
        pattern = substituted(self.contains or self.regex, values, str if self.contains else re.escape)
        return [match.start() for match in re.finditer(re.escape(pattern) if self.contains else pattern, text)]


class Covers(BaseModel):
    """How to see that the look-up was cut: it shows `entries_max` entries or more, counted by `entry`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    entry: Annotated[str, Field(min_length=1)]
    entries_max: Annotated[int, Field(ge=1)]

    @model_validator(mode="after")
    def _valid(self) -> Self:
        return _with_valid_pattern(self, self.entry)


class LookUp(BaseModel):
    """What every look-up declares. What it must guarantee, so that ABSENT may be believed, stands in docs/mcp.md."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    found_when: Found
    many_when_count_over: Annotated[int, Field(ge=1)] = 1
    covers: Covers | None = None


def judged(declared: LookUp, seen: EffectResult, values: Values, by: str) -> ProbeAnswer:
    """Count the effect in what a look-up, made with `by`, has shown."""
    places = declared.found_when.places(seen.text, values)
    if len(places) > declared.many_when_count_over:
        return ProbeAnswer(verdict=ProbeVerdict.MANY, detail=f"the look-up shows the effect {len(places)} times")
    if places:
        return one(seen, by, places[0])
    if why := _not_covered(declared, seen):
        return cannot_tell(why)
    return ProbeAnswer(verdict=ProbeVerdict.ABSENT, detail="the look-up covers the place and does not show the effect")


def one(seen: EffectResult, by: str, place: int = 0) -> ProbeAnswer:
    """The effect is there; what shows it is taken for its result."""
    start = max(0, place - EXCERPT_CHARACTERS_MAX // 2)
    excerpt = seen.text[start : start + EXCERPT_CHARACTERS_MAX].strip()
    found = EffectResult(text=f"Found by looking it up with {by}:\n{excerpt}", structured=seen.structured)
    return ProbeAnswer(verdict=ProbeVerdict.ONE, result=found, detail="the look-up shows the effect once")


def cannot_tell(detail: str) -> ProbeAnswer:
    return ProbeAnswer(verdict=ProbeVerdict.CANNOT_TELL, detail=detail)


def _not_covered(declared: LookUp, seen: EffectResult) -> str:
    """Why a look-up that does not show the effect does not prove its absence either."""
    if seen.truncated or seen.invalid:
        return f"the look-up could not be read in full: {seen.invalid or 'it is too long'}"
    if declared.covers is None:
        return ""
    entries = sum(1 for _ in re.finditer(declared.covers.entry, seen.text))
    if entries >= declared.covers.entries_max:
        return f"the look-up shows {entries} entries and may have been cut there"
    return ""


def _with_valid_pattern(model: Model, pattern: str) -> Model:
    try:
        re.compile(PLACEHOLDER.sub("x", pattern))
    except re.error as error:
        raise ValueError(f"{pattern!r} is not a pattern: {error}") from error
    return model

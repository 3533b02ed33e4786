"""Calls of tools on MCP servers, and the look-ups that tell whether a call took effect. Sends each call once.

`dispatch.configuration` holds `server` (McpServerConfig as a dict), `remote_name` (the tool's name there),
`result_bytes_max`, and optionally `probe` (ProbeDeclaration as a dict) and `definition_digest` (of the registered
definition: a server that has changed it since is not called).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from kernel_project.primitives import clock
from runs.boundary.contracts import Dispatch, EffectResult, NotSent, ProbeAnswer, ProbeVerdict, Refused
from runs.boundary.mcp_config import McpServerConfig, stored_config
from runs.boundary.mcp_results import effect_result
from runs.boundary.mcp_sessions import Answer, Unclear, current_sessions

IDEMPOTENCY_KEY = "idempotency_key"
IDEMPOTENCY_KEY_OWN = "com.agentkernel/idempotency_key"  # the reverse-DNS form that the protocol asks for
RESULT_BYTES_MAX = 16 * 1024 * 1024  # where the configuration names no limit
PROBE_SECONDS_MAX = 60.0
PROBE_BYTES_MAX = 4 * 1024 * 1024  # of a look-up's text; a longer one proves no absence
EXCERPT_CHARACTERS_MAX = 2000

Model = TypeVar("Model", bound=BaseModel)

_PLACEHOLDER = re.compile(r"\{(operation_id|workspace|argument:([A-Za-z0-9_.-]{1,200}))\}")


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


class Covers(BaseModel):
    """How to see that the look-up was cut: it shows `entries_max` entries or more, counted by `entry`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    entry: Annotated[str, Field(min_length=1)]
    entries_max: Annotated[int, Field(ge=1)]

    @model_validator(mode="after")
    def _valid(self) -> Self:
        return _with_valid_pattern(self, self.entry)


class ProbeDeclaration(BaseModel):
    """A read-after-write look-up. What it must guarantee, so that ABSENT may be believed, stands in docs/mcp.md."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tool: Annotated[str, Field(min_length=1)]
    arguments: dict[str, Any] = {}
    found_when: Found
    many_when_count_over: Annotated[int, Field(ge=1)] = 1
    error_means: Literal["cannot_tell", "absent"] = "cannot_tell"
    covers: Covers | None = None


@dataclass(frozen=True)
class _Call:
    """What `dispatch.configuration` says, checked."""

    config: McpServerConfig
    remote_name: str
    bytes_max: int
    digest: str
    probe: ProbeDeclaration | None


async def perform(dispatch: Dispatch) -> EffectResult:
    """Call the tool once.

    Raises NotSent (nothing left), Refused (the server rejected the request before doing anything), SessionLost,
    CallTimedOut or another Unclear (it may have happened).
    """
    call = _read(dispatch)
    answer = await current_sessions().call(
        call.config,
        call.remote_name,
        dispatch.arguments,
        workspace=dispatch.workspace,
        timeout_seconds=_seconds_left(dispatch),
        meta={IDEMPOTENCY_KEY: dispatch.idempotency_key, IDEMPOTENCY_KEY_OWN: dispatch.idempotency_key},
        before_send=dispatch.sending,
        progress=dispatch.heartbeat,
        expected_digest=call.digest,
    )
    kind = answer.result.get("resultType", "complete")
    if kind not in ("complete", "input_required"):
        raise Unclear(f"the MCP server {call.config.name!r} answered with a result of the kind {str(kind)[:80]!r}")
    return effect_result(answer, bytes_max=call.bytes_max)


async def probe(dispatch: Dispatch) -> ProbeAnswer:
    """Ask the server whether the operation's effect is there. Never raises but for a real cancellation."""
    try:
        call = _read(dispatch)
    except NotSent as error:
        return _cannot_tell(str(error))
    if call.probe is None:
        return _cannot_tell("no look-up is declared for this tool")
    sessions = current_sessions()
    if not await sessions.quiet(call.config, dispatch.workspace):
        return _cannot_tell("the server process that got the call has not ended; it could still act")
    try:
        answer = await sessions.call(
            call.config,
            call.probe.tool,
            filled(call.probe.arguments, dispatch),
            workspace=dispatch.workspace,
            timeout_seconds=PROBE_SECONDS_MAX,
        )
        return verdict(call.probe, answer, dispatch)
    except (NotSent, Refused, Unclear) as error:
        return _cannot_tell(f"the look-up failed: {error}")


def verdict(declared: ProbeDeclaration, answer: Answer, dispatch: Dispatch) -> ProbeAnswer:
    """Count the effect in what the look-up answered."""
    result = effect_result(answer, bytes_max=PROBE_BYTES_MAX)
    if result.is_error:
        if declared.error_means == "absent":
            return ProbeAnswer(verdict=ProbeVerdict.ABSENT, detail="the look-up answered with an error")
        return _cannot_tell(f"the look-up answered with an error: {result.text[:500]}")
    places = [match.start() for match in _pattern(declared.found_when, dispatch).finditer(result.text)]
    if len(places) > declared.many_when_count_over:
        return ProbeAnswer(verdict=ProbeVerdict.MANY, detail=f"the look-up shows the effect {len(places)} times")
    if places:
        found = EffectResult(text=f"Found by looking it up with {declared.tool}:\n{_excerpt(result.text, places[0])}")
        return ProbeAnswer(verdict=ProbeVerdict.ONE, result=found, detail="the look-up shows the effect once")
    if why := _not_covered(declared, result):
        return _cannot_tell(why)
    return ProbeAnswer(verdict=ProbeVerdict.ABSENT, detail="the look-up covers the place and does not show the effect")


def filled(value: Any, dispatch: Dispatch) -> Any:
    """The value with its placeholders replaced, once: what a placeholder stands for is not looked at again.

    A text that is nothing but `{argument:…}` becomes the argument itself, of whatever type. Raises NotSent for an
    argument that the call does not have.
    """
    match value:
        case str():
            whole = _PLACEHOLDER.fullmatch(value)
            if whole is not None:
                return _stands_for(whole, dispatch)
            return _PLACEHOLDER.sub(lambda match: str(_stands_for(match, dispatch)), value)
        case dict():
            return {key: filled(member, dispatch) for key, member in value.items()}
        case list() | tuple():
            return [filled(member, dispatch) for member in value]
    return value


def _read(dispatch: Dispatch) -> _Call:
    configuration = dispatch.configuration
    try:
        declared = configuration.get("probe")
        return _Call(
            config=stored_config(configuration["server"]),
            remote_name=str(configuration["remote_name"]),
            bytes_max=int(configuration.get("result_bytes_max") or RESULT_BYTES_MAX),
            digest=str(configuration.get("definition_digest") or ""),
            probe=ProbeDeclaration.model_validate(declared, extra="ignore") if declared else None,
        )
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        why = f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"
    except KeyError as error:
        why = f"{error} is missing"
    raise NotSent(f"the registration of the tool {dispatch.tool!r} cannot be read: {why}")


def _seconds_left(dispatch: Dispatch) -> float:
    left = (dispatch.deadline_at - clock.now()).total_seconds()
    if left <= 0:
        raise NotSent("the deadline passed before the call could be sent")
    return min(dispatch.timeout_seconds, left)


def _stands_for(match: re.Match[str], dispatch: Dispatch) -> Any:
    name, path = match.group(1), match.group(2)
    if name == "operation_id":
        return dispatch.idempotency_key
    if name == "workspace":
        return dispatch.workspace
    value: Any = dispatch.arguments
    for part in path.split("."):
        if not isinstance(value, Mapping) or part not in value:
            raise NotSent(f"the look-up needs the argument {path!r}, which the call does not have")
        value = value[part]
    return value


def _pattern(found: Found, dispatch: Dispatch) -> re.Pattern[str]:
    if found.contains:
        return re.compile(re.escape(str(filled(found.contains, dispatch))))
    return re.compile(_PLACEHOLDER.sub(lambda match: re.escape(str(_stands_for(match, dispatch))), found.regex))


def _not_covered(declared: ProbeDeclaration, result: EffectResult) -> str:
    """Why a look-up that does not show the effect does not prove its absence either."""
    if result.truncated or result.invalid:
        return f"the look-up could not be read in full: {result.invalid or 'it is too long'}"
    if declared.covers is None:
        return ""
    entries = sum(1 for _ in re.finditer(declared.covers.entry, result.text))
    if entries >= declared.covers.entries_max:
        return f"the look-up shows {entries} entries and may have been cut there"
    return ""


def _excerpt(text: str, place: int) -> str:
    start = max(0, place - EXCERPT_CHARACTERS_MAX // 2)
    return text[start : start + EXCERPT_CHARACTERS_MAX].strip()


def _cannot_tell(detail: str) -> ProbeAnswer:
    return ProbeAnswer(verdict=ProbeVerdict.CANNOT_TELL, detail=detail)


def _with_valid_pattern(model: Model, pattern: str) -> Model:
    try:
        re.compile(_PLACEHOLDER.sub("x", pattern))
    except re.error as error:
        raise ValueError(f"{pattern!r} is not a pattern: {error}") from error
    return model

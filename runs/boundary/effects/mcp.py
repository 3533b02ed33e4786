"""Calls of tools on MCP servers, and the look-ups that tell whether a call took effect. Sends each call once.

`dispatch.configuration` holds `server` (McpServerConfig as a dict), `remote_name` (the tool's name there),
`result_bytes_max`, and optionally `probe` (ProbeDeclaration as a dict) and `definition_digest` (of the registered
definition: a server that has changed it since is not called).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from runs.boundary import mcp_calls
from runs.boundary.contracts import Dispatch, EffectResult, NotSent, ProbeAnswer, ProbeVerdict, Refused
from runs.boundary.dispatched import seconds_left, unreadable
from runs.boundary.lookups import LookUp, cannot_tell, judged
from runs.boundary.mcp_config import McpServerConfig, stored_config
from runs.boundary.mcp_pool import current_sessions
from runs.boundary.mcp_results import effect_result
from runs.boundary.mcp_sessions import Answer, Unclear
from runs.boundary.placeholders import filled, values_of

IDEMPOTENCY_KEY = "idempotency_key"
IDEMPOTENCY_KEY_OWN = "com.agentkernel/idempotency_key"  # the reverse-DNS form that the protocol asks for
RESULT_BYTES_MAX = 16 * 1024 * 1024  # where the configuration names no limit
PROBE_SECONDS_MAX = 60.0
PROBE_BYTES_MAX = 4 * 1024 * 1024  # of a look-up's text; a longer one proves no absence


class ProbeDeclaration(LookUp):
    """A look-up with a tool of the same server."""

    tool: Annotated[str, Field(min_length=1)]
    arguments: dict[str, Any] = {}
    error_means: Literal["cannot_tell", "absent"] = "cannot_tell"


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
        timeout_seconds=seconds_left(dispatch),
        meta={IDEMPOTENCY_KEY: dispatch.idempotency_key, IDEMPOTENCY_KEY_OWN: dispatch.idempotency_key},
        before_send=dispatch.sending,
        progress=dispatch.heartbeat,
        expected_digest=call.digest,
        noted_as=mcp_calls.call_name(dispatch.idempotency_key, dispatch.attempt) if call.probe else "",
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
        return cannot_tell(str(error))
    if call.probe is None:
        return cannot_tell("no look-up is declared for this tool")
    may_act = await _could_still_act(call, dispatch)  # asked first: what ends after the look-up proves nothing
    try:
        answer = await current_sessions().call(
            call.config,
            call.probe.tool,
            filled(call.probe.arguments, values_of(dispatch)),
            workspace=dispatch.workspace,
            timeout_seconds=PROBE_SECONDS_MAX,
        )
        found = verdict(call.probe, answer, dispatch)
        return cannot_tell(may_act) if may_act and found.verdict == ProbeVerdict.ABSENT else found
    except (NotSent, Refused, Unclear) as error:
        return cannot_tell(f"the look-up failed: {error}")


async def _could_still_act(call: _Call, dispatch: Dispatch) -> str:
    """Why the call may still be running, so that not seeing its effect proves nothing. Over HTTP only time tells."""
    if call.config.transport != "stdio":
        return ""
    return await mcp_calls.could_still_act(dispatch.idempotency_key, dispatch.attempt)


def verdict(declared: ProbeDeclaration, answer: Answer, dispatch: Dispatch) -> ProbeAnswer:
    """Count the effect in what the look-up answered."""
    result = effect_result(answer, bytes_max=PROBE_BYTES_MAX)
    if result.is_error:
        if declared.error_means == "absent":
            return ProbeAnswer(verdict=ProbeVerdict.ABSENT, detail="the look-up answered with an error")
        return cannot_tell(f"the look-up answered with an error: {result.text[:500]}")
    return judged(declared, result, values_of(dispatch), declared.tool)


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
    except (ValidationError, KeyError) as error:
        raise unreadable(dispatch, error) from None

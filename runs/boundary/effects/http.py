"""Calls of HTTP tools, and the look-ups that tell whether a call took effect. Sends each call once.

`dispatch.configuration` holds `request` (HttpRequest as a dict), `effect`, and optionally `probe` (HttpProbe as one).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from pydantic import ValidationError

from kernel_project.primitives.canonical import NotCanonical, canonical_bytes
from runs.boundary.contracts import Dispatch, EffectResult, NotSent, ProbeAnswer, ProbeVerdict, Refused
from runs.boundary.dispatched import seconds_left, unreadable
from runs.boundary.http_config import HttpProbe, HttpRequest, address, header_values
from runs.boundary.http_exchange import Answered, Request, Unclear, exchange
from runs.boundary.http_results import effect_result, excerpt
from runs.boundary.lookups import cannot_tell, judged, one
from runs.boundary.placeholders import Values, as_text, filled, values_of

# Answers of a server, or of a gateway before it, that did not process the request. Not among them are 408, 409, 423 and
# 425, which servers also say of a request that is under way or was done before.
REFUSING_STATUSES = frozenset(
    {400, 401, 402, 403, 404, 405, 406, 407, 410, 411, 412, 413, 414, 415, 416, 417, 421, 422, 424, 426, 428, 429, 431,
     451}
)  # fmt: skip
PROBE_SECONDS_MAX = 20.0
PROBE_BYTES_MAX = 4 * 1024 * 1024  # of a look-up's answer; a longer one proves no absence
CONTENT_TYPES = {
    "json": "application/json",
    "form": "application/x-www-form-urlencoded",
    "text": "text/plain; charset=utf-8",
}


class UnclearStatus(Unclear):
    """The answer's status does not tell whether the request took effect."""


@dataclass(frozen=True)
class _Call:
    """What `dispatch.configuration` says, checked."""

    request: HttpRequest
    probe: HttpProbe | None
    is_read: bool


async def perform(dispatch: Dispatch) -> EffectResult:
    """Make the call once.

    Raises NotSent (nothing left), Refused (rejected before anything was done), or an Unclear (it may have happened):
    ConnectionLost, CallTimedOut, RedirectFailed, UnclearStatus.
    """
    call = _read(dispatch)
    request, secrets = _request(call, dispatch)
    answered = await exchange(request, before_send=dispatch.sending, seconds=seconds_left(dispatch))
    if 200 <= answered.status < 300:
        return effect_result(answered, secrets)
    raise _judged(call, answered, secrets)


async def probe(dispatch: Dispatch) -> ProbeAnswer:
    """Look whether the operation's effect is there. Raises nothing but a real cancellation."""
    try:
        call = _read(dispatch)
        if call.probe is None:
            return cannot_tell("no look-up is declared for this tool")
        request, secrets = _look_up_request(call, call.probe, dispatch)
        answered = await exchange(request, before_send=None, seconds=PROBE_SECONDS_MAX)
        return verdict(call.probe, answered, values_of(dispatch), secrets)
    except (NotSent, Refused, Unclear) as error:
        return cannot_tell(f"the look-up failed: {error}")


def verdict(declared: HttpProbe, answered: Answered, values: Values, secrets: tuple[str, ...] = ()) -> ProbeAnswer:
    """What the answer of a look-up proves."""
    if answered.status in declared.absent_statuses:
        return ProbeAnswer(verdict=ProbeVerdict.ABSENT, detail=f"the look-up answered with status {answered.status}")
    if not 200 <= answered.status < 300:
        return cannot_tell(f"the look-up answered with status {answered.status}")
    seen = effect_result(answered, secrets)
    look_up = declared.look_up()
    return one(seen, "GET") if look_up is None else judged(look_up, seen, values, "GET")


def _judged(call: _Call, answered: Answered, secrets: tuple[str, ...]) -> Exception:
    """What an answer that is no success says about the effect. A read has none, and ends where a repeat is in vain."""
    said = excerpt(answered, secrets)
    sentence = f"HTTP status {answered.status}" + (f": {said}" if said else "")
    if answered.status in REFUSING_STATUSES or answered.status in call.request.refused_statuses:
        return Refused(sentence)
    if call.is_read and 300 <= answered.status < 400:
        return Refused(f"{sentence}: the answer points elsewhere, and that was not followed")
    return UnclearStatus(sentence)


def _read(dispatch: Dispatch) -> _Call:
    configuration = dispatch.configuration
    try:
        declared = configuration.get("probe")
        return _Call(
            request=HttpRequest.model_validate(configuration["request"], extra="ignore"),
            probe=HttpProbe.model_validate(declared, extra="ignore") if declared else None,
            is_read=configuration.get("effect") == "read",
        )
    except (ValidationError, KeyError) as error:
        raise unreadable(dispatch, error) from None


def _request(call: _Call, dispatch: Dispatch) -> tuple[Request, tuple[str, ...]]:
    """The request, and the secrets in it."""
    declared, values = call.request, values_of(dispatch)
    headers, secrets = header_values(declared.headers)
    if declared.key_header:
        headers[declared.key_header] = dispatch.idempotency_key
    content, content_type = _content(declared, values)
    if any(name.lower() == "content-type" for name in headers):
        content_type = ""
    request = Request(
        method=declared.method,
        url=address(declared.url, declared.query, values),
        headers=headers,
        content=content,
        content_type=content_type,
        is_read=call.is_read,
        bytes_max=declared.response_bytes_max,
        **_reach(declared),
    )
    return request, secrets


def _look_up_request(call: _Call, declared: HttpProbe, dispatch: Dispatch) -> tuple[Request, tuple[str, ...]]:
    """A GET without the idempotency key: it asks, and must not be taken for a repetition of the call."""
    own = call.request.headers if declared.headers is None else declared.headers
    headers, secrets = header_values({name: value for name, value in own.items() if name.lower() != "content-type"})
    url = address(declared.url, declared.query, values_of(dispatch))
    return Request("GET", url, headers, is_read=True, bytes_max=PROBE_BYTES_MAX, **_reach(call.request)), secrets


def _reach(declared: HttpRequest) -> dict[str, Any]:
    """Where a request may go; the same for a call and its look-up."""
    return {
        "private_hosts": declared.private_hosts,
        "redirects_max": declared.redirects_max,
        "tls_ca_file": declared.tls_ca_file,
    }


def _content(declared: HttpRequest, values: Values) -> tuple[bytes, str]:
    if declared.body is None:
        return b"", ""
    body = filled(declared.body, values)
    try:
        return _encoded(declared.body_type, body), CONTENT_TYPES[declared.body_type]
    except (NotCanonical, UnicodeEncodeError) as error:
        raise NotSent(f"the body cannot be written: {type(error).__name__}") from None


def _encoded(body_type: str, body: Any) -> bytes:
    match body_type:
        case "json":
            return canonical_bytes(body)
        case "form":
            assert isinstance(body, Mapping), "checked when it was declared"
            fields = {str(name): as_text(value) for name, value in body.items() if value is not None}
            return urlencode(fields, quote_via=quote, safe="").encode()
    return as_text(body).encode()

"""Errors as `application/problem+json` (RFC 9457), all of them in one form. Decides nothing."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from django.http import HttpRequest, HttpResponse
from pydantic import BaseModel, ConfigDict, Field

from kernel_project.primitives.errors import Conflict, Forbidden, Invalid, KernelError, NotFound, Unavailable
from kernel_project.web.request_ids import HEADER, request_id

logger = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"
TYPE_PREFIX = "urn:agent-kernel:problem:"
RETRY_AFTER_SECONDS = 5
ERRORS_SHOWN_MAX = 20  # of one request's mistakes
TEXT_CHARS_MAX = 2_000  # of one sentence: what a caller sent may be quoted in it


class Unauthenticated(Forbidden):
    """Nobody knows who is asking (HTTP 401)."""

    code = "unauthenticated"


class RateLimited(Unavailable):
    """Too many requests with one key (429); `details` say when to come back."""

    code = "rate_limited"


class TooLarge(Invalid):
    """The body is over the limit (413)."""

    code = "body_too_large"


class UnsupportedMediaType(Invalid):
    """The body is not said to be JSON (415)."""

    code = "unsupported_media_type"


class WrongMethod(Invalid):
    """The path exists, the method does not (405)."""

    code = "method_not_allowed"


class RangeNotPossible(Invalid):
    """A range beyond the end (416)."""

    code = "range_not_satisfiable"


class NotReadable(Invalid):
    """Parts of the request are wrong; `errors` name each with its path (422)."""

    code = "invalid_request"


STATUSES: Sequence[tuple[type[KernelError], HTTPStatus]] = (
    (Unauthenticated, HTTPStatus.UNAUTHORIZED),
    (RateLimited, HTTPStatus.TOO_MANY_REQUESTS),
    (TooLarge, HTTPStatus.REQUEST_ENTITY_TOO_LARGE),
    (UnsupportedMediaType, HTTPStatus.UNSUPPORTED_MEDIA_TYPE),
    (WrongMethod, HTTPStatus.METHOD_NOT_ALLOWED),
    (RangeNotPossible, HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE),
    (Forbidden, HTTPStatus.FORBIDDEN),
    (NotFound, HTTPStatus.NOT_FOUND),
    (Conflict, HTTPStatus.CONFLICT),
    (Unavailable, HTTPStatus.SERVICE_UNAVAILABLE),
    (Invalid, HTTPStatus.UNPROCESSABLE_ENTITY),
)  # the first that fits


class Mistake(BaseModel):
    """One thing that is wrong in a request: where (`$.agent` in a body, or the parameter's name) and what."""

    model_config = ConfigDict(frozen=True, serialize_by_alias=True)

    place: str = Field(alias="in", description="body, query, path or header")
    path: str
    message: str


class Problem(BaseModel):
    """The body of every error. Some codes bring further members, such as `state` or `decided_by`."""

    model_config = ConfigDict(frozen=True, extra="allow")

    type: str
    title: str
    status: int
    detail: str
    code: str = Field(description="Stable, for programs.")
    request_id: str
    errors: list[Mistake] = Field(default_factory=list, max_length=ERRORS_SHOWN_MAX)


def status_of(error: KernelError) -> HTTPStatus:
    """The HTTP status of an error of ours."""
    found = (status for kind, status in STATUSES if isinstance(error, kind))
    return next(found, HTTPStatus.INTERNAL_SERVER_ERROR)


def answer(request: HttpRequest, error: KernelError) -> HttpResponse:
    """The response for an error that was raised on purpose."""
    status = status_of(error)
    details = dict(error.details)
    response = problem(request, status, error.error_code, error.message, details)
    if isinstance(error, Unavailable):
        response["Retry-After"] = str(details.get("retry_after_seconds", RETRY_AFTER_SECONDS))
    if isinstance(error, Unauthenticated):
        response["WWW-Authenticate"] = 'Bearer realm="agent-kernel"'
    return response


def crash(request: HttpRequest, error: BaseException) -> HttpResponse:
    """The response for an error that nobody expected: nothing of it leaves, the log has it under the request's id."""
    logger.error("request %s failed", request_id(request), exc_info=error)
    return problem(request, HTTPStatus.INTERNAL_SERVER_ERROR, "internal_error", "The server failed; the log says why.")


def problem(
    request: HttpRequest, status: HTTPStatus, code: str, detail: str, details: dict[str, Any] | None = None
) -> HttpResponse:
    """A problem document. `details` become members of it; they cannot replace the standard ones."""
    body = {
        **(details or {}),
        "type": TYPE_PREFIX + code,
        "title": status.phrase,
        "status": int(status),
        "detail": detail[:TEXT_CHARS_MAX],
        "code": code,
        "request_id": request_id(request),
        "errors": (details or {}).get("errors", [])[:ERRORS_SHOWN_MAX],
    }
    response = HttpResponse(json.dumps(body), status=int(status), content_type=MEDIA_TYPE)
    response[HEADER] = request_id(request)
    response["Cache-Control"] = "no-store"
    return response


def mistake(place: str, path: str, message: str) -> dict[str, str]:
    """One entry of `errors`."""
    return {"in": place, "path": path[:TEXT_CHARS_MAX], "message": message[:TEXT_CHARS_MAX]}


def not_readable(mistakes: Sequence[dict[str, str]]) -> NotReadable:
    """The error for a request with mistakes; the sentence tells of the first of them."""
    first = mistakes[0]
    where = first["path"] if first["in"] == "body" else f"{first['in']} {first['path']}"
    return NotReadable(f"{where}: {first['message']}", errors=list(mistakes))

"""One id per request, in the answer's header, in every problem and in the log."""

from __future__ import annotations

import re

from django.http import HttpRequest

from kernel_project.primitives.ids import new_id

HEADER = "X-Request-Id"
GIVEN = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)  # a proxy's id is kept if it is harmless in a log line
ATTRIBUTE = "kernel_request_id"


def request_id(request: HttpRequest) -> str:
    """The id of this request: the proxy's, if it brings a usable one, or our own; the same on every call."""
    known: str | None = getattr(request, ATTRIBUTE, None)
    if known is None:
        given = request.headers.get(HEADER, "")
        known = given if GIVEN.fullmatch(given) else str(new_id())
        setattr(request, ATTRIBUTE, known)
    return known

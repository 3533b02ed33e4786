"""The door to artifacts: bytes of a run, as a download that no browser opens in our name."""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import Annotated, Any
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from ninja import Header, Path, Router

from kernel_project.web.callers import Needs, caller_of
from kernel_project.web.problems import RangeNotPossible
from runs import selectors
from runs.boundary import artifacts

router = Router(tags=["artifacts"])
RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.ASCII)  # one stretch; several are answered with the whole
MEDIA_TYPE = "application/octet-stream"  # whatever a tool said that it is
Digest = Annotated[str, Path(pattern=r"^[0-9a-f]{64}$", min_length=64, max_length=64)]
WantedRange = Annotated[str | None, Header(alias="Range", max_length=200, description="Such as bytes=0-1023.")]
BYTES = {MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}}
DOCUMENT: dict[str, Any] = {
    "responses": {
        200: {"description": "All bytes, as an attachment.", "content": BYTES},
        206: {"description": "The bytes of the range.", "content": BYTES},
        416: {"$ref": "#/components/responses/Problem"},
    }
}


@router.get(
    "/runs/{run_id}/artifacts/{digest}", auth=Needs("artifacts:read"), response={200: None}, openapi_extra=DOCUMENT
)
def get_artifact(request: HttpRequest, run_id: UUID, digest: Digest, wanted: WantedRange = None) -> HttpResponse:
    """The bytes behind `artifact://sha256/DIGEST`, for a run that refers to them."""
    run = selectors.run(caller_of(request).project, run_id)
    data = artifacts.read(run.id, digest)
    stretch = _stretch(wanted, len(data))
    response = HttpResponse(data[stretch] if stretch else data, content_type=MEDIA_TYPE)
    if stretch:
        response.status_code = HTTPStatus.PARTIAL_CONTENT
        response["Content-Range"] = f"bytes {stretch.start}-{stretch.stop - 1}/{len(data)}"
    response["Accept-Ranges"] = "bytes"
    response["Content-Disposition"] = f'attachment; filename="{digest[:16]}.bin"'
    response["Content-Security-Policy"] = "sandbox; default-src 'none'"
    response["X-Content-Type-Options"] = "nosniff"
    response["ETag"] = f'"{digest}"'
    return response


def _stretch(wanted: str | None, size: int) -> slice | None:
    """The one stretch that is asked for; None for the whole. Raises RangeNotPossible beyond the end."""
    given = RANGE.fullmatch(wanted or "")
    if given is None or given.groups() == ("", ""):
        return None
    first, last = given.groups()
    start = int(first) if first else max(size - int(last), 0)
    stop = min(int(last) + 1, size) if first and last else size
    if first and last and int(last) < int(first):
        return None  # not a range, says RFC 9110: ignored
    if start >= size:
        raise RangeNotPossible(f"there are {size} bytes", size=size)
    return slice(start, stop)

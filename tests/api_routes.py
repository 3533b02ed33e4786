"""The routes of the JSON API, as its own OpenAPI document tells them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from kernel_project.api import api

BODIES = {
    "/runs": {"agent": "nobody", "input": "go"},
    "/runs/{run_id}/cancel": {"reason": "no"},
    "/runs/{run_id}/resume": None,
    "/runs/{run_id}/messages": {"text": "and the drafts?"},
    "/operations/{operation_id}/reconcile": {"verdict": "none", "note": "looked"},
    "/operations/{operation_id}/probe": {},
    "/operations/{operation_id}/compensate": {"note": "wrong customer"},
    "/holds": {"scope": "project", "reason": "a claim"},
    "/holds/{hold_id}/release": {"reason": "settled"},
    "/approvals/{approval_id}/decide": {"verdict": "approve"},
    "/approvals/{approval_id}/edit": {"arguments": {"text": "other"}, "reason": "less"},
}


class Route(NamedTuple):
    method: str
    path: str
    scope: str

    def call(self, caller: Any, ids: Mapping[str, str]) -> Any:
        """Call it with something that is right in form."""
        path = self.path.format(**ids)
        return caller.get(path) if self.method == "get" else caller.post(path, BODIES[self.path])


def routes() -> list[Route]:
    paths = api.get_openapi_schema(path_prefix="")["paths"]
    return [
        Route(method, path, operation["x-scope"])
        for path, methods in paths.items()
        for method, operation in methods.items()
    ]

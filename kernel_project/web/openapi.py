"""What ninja leaves out of the OpenAPI document: problems, security, scopes. Changes no behaviour."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from kernel_project.web.problems import MEDIA_TYPE, Problem

REF = "#/components/schemas/{model}"
ANYWHERE = (401, 403, 404, 422, 429, 500, 503)
WHERE_SOMETHING_CHANGES = (409, 413, 415)
PROJECT = {
    "in": "query",
    "name": "project",
    "required": False,
    "schema": {"type": "string", "maxLength": 100},
    "description": "For people who are logged in: whose project. A key belongs to one and needs no parameter.",
}
SECURITY_SCHEMES = {
    "ApiKey": {"type": "http", "scheme": "bearer", "description": "`Authorization: Bearer ak_…`"},
    "Session": {
        "type": "apiKey",
        "in": "cookie",
        "name": "sessionid",
        "description": "A staff user's session; with `X-CSRFToken` on everything but reads.",
    },
}


def query_names(methods: Mapping[str, Any]) -> dict[str, frozenset[str]]:
    """The query parameters that each method of a path knows."""
    return {
        method.upper(): frozenset(one["name"] for one in operation["parameters"] if one["in"] == "query")
        for method, operation in methods.items()
    }


def complete(schema: dict[str, Any], scopes: Mapping[str, str]) -> None:
    """Add to a document what holds for all routes. `scopes` are by operation id."""
    components = schema["components"]
    described = Problem.model_json_schema(ref_template=REF, mode="serialization")
    components["schemas"] |= described.pop("$defs", {}) | {"Problem": described}
    components["securitySchemes"] = SECURITY_SCHEMES
    components["responses"] = {"Problem": _problem_response()}
    for methods in schema["paths"].values():
        for method, operation in methods.items():
            _complete(method, operation, scopes.get(operation["operationId"], ""))


def _complete(method: str, operation: dict[str, Any], scope: str) -> None:
    statuses = ANYWHERE if method == "get" else ANYWHERE + WHERE_SOMETHING_CHANGES
    for status in statuses:
        operation["responses"].setdefault(status, {"$ref": "#/components/responses/Problem"})
    operation["security"] = [{"ApiKey": []}, {"Session": []}]
    operation["x-scope"] = scope
    operation["description"] = f"{operation.get('description', '')}\n\nScope: `{scope}`".strip()
    if PROJECT not in operation["parameters"]:
        operation["parameters"] = [*operation["parameters"], PROJECT]
    for parameter in operation["parameters"]:
        parameter["schema"] = _without_null(parameter["schema"])


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A parameter is there or not; nobody can send a null in it."""
    kinds: list[dict[str, Any]] = [kind for kind in schema.get("anyOf", []) if kind.get("type") != "null"]
    if len(kinds) != 1:
        return schema
    return {name: value for name, value in schema.items() if name != "anyOf"} | kinds[0]


def _problem_response() -> dict[str, Any]:
    codes = ", ".join(f"{code} {HTTPStatus(code).phrase}" for code in sorted(ANYWHERE + WHERE_SOMETHING_CHANGES))
    return {
        "description": f"One form for every error ({codes}).",
        "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }

"""django-ninja, held to our conventions: strict requests, a problem for every error, a true OpenAPI document."""

from __future__ import annotations

import functools
from asyncio import iscoroutinefunction
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any
from uuid import UUID

from django.conf import settings
from django.core.exceptions import RequestDataTooBig
from django.db import InterfaceError, OperationalError
from django.http import Http404, HttpRequest, HttpResponse, UnreadablePostError
from django.http.response import HttpResponseBase
from django.urls import URLPattern, URLResolver
from ninja import NinjaAPI
from ninja.errors import HttpError, ValidationError
from ninja.openapi.schema import OpenAPISchema
from ninja.parser import Parser

from kernel_project.primitives import logs, traces
from kernel_project.primitives.errors import KernelError, NotFound, Unavailable
from kernel_project.web import openapi, problems
from kernel_project.web.callers import Needs
from kernel_project.web.problems import NotReadable, TooLarge, UnsupportedMediaType, WrongMethod, mistake
from kernel_project.web.request_ids import HEADER, request_id
from kernel_project.web.strict_json import read_json

View = Callable[..., Any]
READS = frozenset({"GET", "HEAD"})


class StrictParser(Parser):
    """Bodies as strict JSON."""

    def parse_body(self, request: HttpRequest) -> Any:
        return read_json(request.body)


class KernelApi(NinjaAPI):
    """The JSON API. Doors are ordinary ninja routers with `auth=Needs(scope)`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(parser=StrictParser(), **options)

    def on_exception(self, request: HttpRequest, exc: Any) -> HttpResponse:
        return _answer(request, exc)

    @property
    def urls(self) -> tuple[list[URLResolver | URLPattern], str, str]:
        patterns, app_name, namespace = super().urls
        paths = self.get_openapi_schema(path_prefix="")["paths"]
        for pattern in patterns:
            assert isinstance(pattern, URLPattern)
            path = "/" + str(pattern.pattern).replace("<", "{").replace(">", "}")
            pattern.callback = guarded(pattern.callback, openapi.query_names(paths.get(path, {})))
        return patterns, app_name, namespace

    def get_openapi_schema(
        self, *, path_prefix: str | None = None, path_params: dict[str, Any] | None = None
    ) -> OpenAPISchema:
        schema = super().get_openapi_schema(path_prefix=path_prefix, path_params=path_params)
        scopes = {
            operation.operation_id or self.get_openapi_operation_id(operation): needs.scope
            for router in self._get_bound_routers()
            for view in router.path_operations.values()
            for operation in view.operations
            for needs in operation.auth_callbacks
            if isinstance(needs, Needs)
        }
        openapi.complete(schema, scopes)
        return schema


def guarded(view: View, names: Mapping[str, frozenset[str]]) -> View:
    """The view behind checks that no route may forget, with a problem for whatever goes wrong in it.

    `names` are the query parameters of each method; without it (the documents) only reading is allowed.
    """

    def begin(request: HttpRequest) -> None:
        _check_method(request, names)
        _check_query(request, names)
        if request.method not in READS:
            _check_body(request)
        elif request.method == "HEAD":
            request.method = "GET"  # until the answer is there; the server then leaves its body away

    if iscoroutinefunction(view):

        @functools.wraps(view)
        async def guarded_async(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
            with _observed(request, kwargs):
                try:
                    begin(request)
                    return _finish(request, await view(request, *args, **kwargs))
                except Exception as error:
                    return _answer(request, error)
                finally:
                    request.method = request.META["REQUEST_METHOD"]

        return guarded_async

    @functools.wraps(view)
    def guarded_sync(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        with _observed(request, kwargs):
            try:
                begin(request)
                return _finish(request, view(request, *args, **kwargs))
            except Exception as error:
                return _answer(request, error)
            finally:
                request.method = request.META["REQUEST_METHOD"]

    return guarded_sync


@contextmanager
def _observed(request: HttpRequest, path: Mapping[str, Any]) -> Iterator[None]:
    """Log lines and the span of this request carry its id, and the run or operation that its path names."""
    named = {name: path[name] for name in ("run_id", "operation_id") if _is_id(path.get(name))}
    route = request.resolver_match.route if request.resolver_match else ""
    with (
        logs.about(request_id=request_id(request), **named),
        traces.span(f"{request.method} /{route}", **{"http.request.method": str(request.method), "http.route": route}),
    ):
        yield


def _is_id(value: object) -> bool:
    try:
        return bool(value) and UUID(str(value)) is not None
    except ValueError:
        return False


def _check_method(request: HttpRequest, names: Mapping[str, frozenset[str]]) -> None:
    allowed = sorted(names) or ["GET"]
    wanted = "GET" if request.method == "HEAD" else request.method
    if wanted not in allowed:
        raise WrongMethod(f"{request.method} is not possible here", allow=allowed)


def _check_query(request: HttpRequest, names: Mapping[str, frozenset[str]]) -> None:
    """A misspelt filter must not answer with everything, nor a doubled one with half."""
    known = names.get("GET" if request.method == "HEAD" else request.method or "")
    if known is None:
        return
    wrong = [
        mistake("query", name, "there is no such parameter" if name not in known else "the parameter comes twice")
        for name, values in request.GET.lists()
        if name not in known or len(values) > 1
    ]
    if wrong:
        raise problems.not_readable(wrong)


def _check_body(request: HttpRequest) -> None:
    limit = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
    too_large = TooLarge(f"the body is larger than {limit} bytes")
    try:
        body = request.body
    except RequestDataTooBig:
        raise too_large from None
    if len(body) > limit:  # sent in chunks, without its length
        raise too_large
    if body and request.content_type != "application/json":
        raise UnsupportedMediaType("send JSON, with the header Content-Type: application/json")


def _finish(request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
    response[HEADER] = request_id(request)
    response.headers.setdefault("Cache-Control", "no-store")
    return response


def _answer(request: HttpRequest, error: Exception) -> HttpResponse:
    """A problem for anything that a view, a check or ninja itself raised."""
    cause = error.__cause__
    match error:
        case WrongMethod():
            response = problems.answer(request, error)
            response["Allow"] = ", ".join(error.details["allow"])
            return response
        case KernelError():
            return problems.answer(request, error)
        case ValidationError():
            return problems.answer(request, _not_valid(error))
        case HttpError() if isinstance(cause, KernelError):  # the parser's, wrapped by ninja
            return problems.answer(request, cause)
        case HttpError():
            return problems.problem(request, HTTPStatus(error.status_code), "http_error", str(error))
        case Http404():
            return problems.answer(request, NotFound("there is no such path"))
        case UnreadablePostError():
            return problems.problem(request, HTTPStatus.BAD_REQUEST, "incomplete_body", "the body did not arrive whole")
        case OperationalError() | InterfaceError():
            problems.logger.warning("request %s: the database failed: %s", request_id(request), type(error).__name__)
            return problems.answer(request, Unavailable("the database does not answer", code="database_unavailable"))
    return problems.crash(request, error)


def _not_valid(error: ValidationError) -> NotReadable:
    """Pydantic's findings in our form: the place, the path in it, a sentence."""
    return problems.not_readable([_mistake(found) for found in error.errors])


def _mistake(found: Mapping[str, Any]) -> dict[str, str]:
    place, *rest = found["loc"]
    if place == "body":
        members = [f"[{step}]" if isinstance(step, int) else f".{step}" for step in rest[1:]]
        return mistake(place, "$" + "".join(members), found["msg"])
    return mistake(str(place), ".".join(map(str, rest)), found["msg"])

"""Failures that happen before or around a view: problems under /api/, Django's own pages elsewhere."""

from __future__ import annotations

from http import HTTPStatus

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.views import defaults
from django.views.decorators.csrf import csrf_exempt

from kernel_project.primitives.errors import NotFound
from kernel_project.web import problems

PREFIX = "/api/"


@csrf_exempt
def no_such_path(request: HttpRequest) -> HttpResponseBase:
    """The answer for any path under /api/ that no route has."""
    return problems.answer(request, NotFound("there is no such path"))


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponseBase:
    """A request that Django itself refuses: a foreign Host header, a cookie out of form."""
    if not request.path.startswith(PREFIX):
        return defaults.bad_request(request, exception)
    return problems.problem(request, HTTPStatus.BAD_REQUEST, "bad_request", "the request is not well formed")


def permission_denied(request: HttpRequest, exception: Exception) -> HttpResponseBase:
    if not request.path.startswith(PREFIX):
        return defaults.permission_denied(request, exception)
    return problems.problem(request, HTTPStatus.FORBIDDEN, "forbidden", "this is not allowed")


def not_found(request: HttpRequest, exception: Exception) -> HttpResponseBase:
    if not request.path.startswith(PREFIX):
        return defaults.page_not_found(request, exception)
    return no_such_path(request)


def server_error(request: HttpRequest) -> HttpResponseBase:
    if not request.path.startswith(PREFIX):
        return defaults.server_error(request)
    detail = "The server failed; the log says why."
    return problems.problem(request, HTTPStatus.INTERNAL_SERVER_ERROR, "internal_error", detail)

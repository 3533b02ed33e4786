"""The content security policy of the admin: code and styles from our own files only, nothing to or from elsewhere."""

from __future__ import annotations

from collections.abc import Callable

from django.http import HttpRequest, HttpResponseBase
from django.urls import reverse

# 'unsafe-eval' because unfold's Alpine compiles its expressions; they stand in templates, never in data. There is no
# 'unsafe-inline': text that got out of its place could neither run nor style anything.
POLICY = (
    "default-src 'none'; script-src 'self' 'unsafe-eval'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)


class AdminPolicyMiddleware:
    """Puts the policy on every answer under the admin's address, errors and redirects too."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response
        self.prefix = ""

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        response = self.get_response(request)
        self.prefix = self.prefix or reverse("admin:index")
        if request.path.startswith(self.prefix):
            response.headers.setdefault("Content-Security-Policy", POLICY)
            response.headers.setdefault("Cache-Control", "no-store")
        return response

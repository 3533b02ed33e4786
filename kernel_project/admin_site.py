"""The admin site with the home page of the operator's console. Knows no model by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils.decorators import method_decorator
from django.views.decorators.http import require_safe

from kernel_project import dashboard, oidc

if TYPE_CHECKING:
    from django.contrib.admin import AdminSite as Base
else:
    from unfold.sites import UnfoldAdminSite as Base


class OversightSite(Base):
    index_title = "Oversight"

    def extra_urls(self) -> list[URLPattern]:
        return [path("live/", self.admin_view(self.live), name="live")]

    def each_context(self, request: HttpRequest) -> dict[str, Any]:
        # without colours in the context unfold writes no inline style: ours stand in static/kernel/theme.css
        return super().each_context(request) | {"colors": None, "oidc_url": oidc.login_address()}

    def index(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> TemplateResponse:
        cards = dashboard.cards(request.user)
        return super().index(request, {"cards": cards, **dashboard.frame(), **(extra_context or {})})

    @method_decorator(require_safe)
    def live(self, request: HttpRequest) -> HttpResponse:
        """The cards alone, for the home page that refreshes itself."""
        return render(request, "kernel/home_cards.html", {"cards": dashboard.cards(request.user), **dashboard.frame()})

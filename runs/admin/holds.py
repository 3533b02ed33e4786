"""Legal holds in the console: what is held and why, placing and releasing. Deletes none."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from kernel_project.admin import FactAdmin, audit, badge, cell, demand, few_enough, moment, report, wide_cell
from kernel_project.primitives.errors import KernelError
from kernel_project.visible_text import shown
from outbox.contracts import Actor
from runs.keeping import holds
from runs.models import Hold

PLACE = "runs.place_hold"


class HoldForm(forms.Form):
    """A hold as a person names it; author and time are the service's."""

    project = forms.SlugField(max_length=100)
    scope = forms.ChoiceField(choices=Hold.Scope.choices)
    target = forms.CharField(
        max_length=200, required=False, help_text="Id of the run or operation, or digest of the artifact."
    )
    reason = forms.CharField(max_length=holds.REASON_CHARS_MAX, widget=forms.Textarea(attrs={"rows": 3}))


class InForceFilter(admin.SimpleListFilter):
    title = "hold"
    parameter_name = "in_force"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Iterable[tuple[str, str]]:
        return [("1", "in force")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Hold]) -> QuerySet[Hold]:
        return queryset.filter(released_at__isnull=True) if self.value() == "1" else queryset


@admin.register(Hold)
class HoldAdmin(FactAdmin):
    """Legal holds: placed and released by name, on record for ever."""

    list_display = ["what", "project", "fate", "why", "placed", "released"]
    list_filter = [InForceFilter]
    exact_ids = ["id", "run_id", "operation_id"]
    exact_texts = ["project", "digest"]
    search_help_text = "A whole project, run, operation, digest or hold id"
    ordering = ["-id"]
    actions = ["release"]

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm(PLACE)

    def has_release_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm(PLACE)

    def add_view(
        self, request: HttpRequest, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Ask what is to be held and why, then place the hold through the service."""
        if not self.has_add_permission(request):
            raise PermissionDenied
        form = HoldForm(request.POST or None)
        if request.method == "POST" and form.is_valid() and (hold := _placed(request, form)):
            return self.response_post_save_add(request, hold)
        context = {**self.admin_site.each_context(request), "form": form, "opts": self.opts, "title": "Place a hold"}
        return TemplateResponse(request, "kernel/hold_add.html", context)

    @admin.action(description="Release…", permissions=["release"])
    def release(self, request: HttpRequest, queryset: QuerySet[Hold]) -> HttpResponse | None:
        """Ask for a reason, then release each by itself."""
        demand(request, PLACE, None, "releasing holds")
        chosen = few_enough(request, queryset)
        reason = request.POST.get("reason", "").strip()
        if chosen and not reason:
            if "reason" in request.POST:
                messages.error(request, "say why they are released")
            context = {**self.admin_site.each_context(request), "holds": chosen, "opts": self.opts}
            return TemplateResponse(request, "kernel/holds_release.html", context)
        for hold in chosen:
            report(request, hold, partial(_release, request, hold, reason))
        return None

    @admin.display(description="Held")
    def what(self, hold: Hold) -> SafeString:
        return format_html('{} <span class="k-mono">{}</span>', badge("waiting", hold.scope), shown(hold.target))

    @admin.display(description="State")
    def fate(self, hold: Hold) -> SafeString:
        return badge("idle", "released") if hold.released_at else badge("running", "in force")

    @admin.display(description="Why")
    def why(self, hold: Hold) -> SafeString:
        return wide_cell(hold.reason)

    @admin.display(description="Placed")
    def placed(self, hold: Hold) -> SafeString:
        return format_html("{} by {}", moment(hold.placed_at), cell(hold.placed_by))

    @admin.display(description="Released")
    def released(self, hold: Hold) -> SafeString:
        if hold.released_at is None:
            return moment(None)
        return format_html(
            "{} by {}: {}", moment(hold.released_at), cell(hold.released_by), wide_cell(hold.release_reason)
        )


def _placed(request: HttpRequest, form: HoldForm) -> Hold | None:
    values = form.cleaned_data
    try:
        hold = holds.place(
            project=values["project"], scope=values["scope"], target=values["target"].strip(),
            reason=values["reason"], by=_person(request),
        )  # fmt: skip
    except KernelError as error:
        form.add_error(None, shown(error.message))
        return None
    audit(request, hold, f"{hold} placed: {hold.reason}")
    messages.success(request, shown(f"{hold} is in force: nothing deletes it"))
    return hold


def _release(request: HttpRequest, hold: Hold, reason: str) -> str:
    return f"{holds.release(hold.id, project=hold.project, reason=reason, by=_person(request))} released: {reason}"


def _person(request: HttpRequest) -> Actor:
    assert isinstance(request.user, User)
    return Actor(id=request.user.get_username(), type="human")

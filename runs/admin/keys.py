"""Keys of the JSON API in the console: made and shown once, taken back. No key is changed: another one is made."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

from django import forms
from django.contrib import admin
from django.contrib.auth.models import User
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from kernel_project.admin import FactAdmin, audit, badge, cell, demand, few_enough, moment, report
from kernel_project.primitives.clock import now
from kernel_project.primitives.errors import Forbidden, KernelError
from kernel_project.visible_text import shown
from kernel_project.web.callers import PERMISSIONS, SCOPES
from runs import keys
from runs.models import ApiKey

MAKE, TAKE_BACK = "runs.add_apikey", "runs.change_apikey"
DAYS_MAX = 3_650  # ten years; who wants more leaves it empty and answers for it


class KeyForm(forms.Form):
    """A key as a person wants it. Whom it acts for is not chosen freely: that would be a way to act as others."""

    project = forms.SlugField(max_length=100, help_text="The project's slug.")
    name = forms.CharField(max_length=keys.NAME_CHARS_MAX, help_text="What the key is for.")
    scopes = forms.MultipleChoiceField(
        choices=[(scope, scope) for scope in SCOPES], widget=forms.CheckboxSelectMultiple,
        help_text="You can hand out only what you may do yourself.",
    )  # fmt: skip
    days = forms.IntegerField(
        min_value=1, max_value=DAYS_MAX, required=False, label="Valid for days", help_text="Empty: it does not expire."
    )
    as_me = forms.BooleanField(
        required=False, label="Acts as me",
        help_text="Needed to decide, reconcile, compensate and hold: you answer for what is done with it.",
    )  # fmt: skip


@admin.register(ApiKey)
class ApiKeyAdmin(FactAdmin):
    """Keys of the JSON API: whose they are, what they may do, when they were last used."""

    list_display = ["named", "prefix", "project", "person", "scoped", "used", "expires", "standing"]
    list_select_related = ["project", "user"]
    ordering = ["-id"]
    exact_texts = ["prefix", "project__slug"]
    search_help_text = "A whole prefix or project"
    actions = ["revoke"]
    fields = [
        "name", "prefix", "project", "user", "scopes", "created_at", "created_by", "expires_at", "revoked_at",
        "revoked_by", "last_used_at",
    ]  # fmt: skip

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm(MAKE)

    def has_revoke_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm(TAKE_BACK)

    def add_view(
        self, request: HttpRequest, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Ask what the key is for, make it, and show it in the answer to this very request: nothing keeps it."""
        demand(request, MAKE, None, "making an API key")
        form = KeyForm(request.POST or None)
        context = {**self.admin_site.each_context(request), "form": form, "opts": self.opts, "title": "Make an API key"}
        template = "kernel/key_add.html"
        if request.method == "POST" and form.is_valid() and (made := _made(request, form)):
            template = "kernel/key_shown.html"
            context |= {"key": made[0], "token": made[1], "title": "The key, once"}
        return TemplateResponse(request, template, context, headers={"Cache-Control": "no-store"})

    @admin.action(description="Take back", permissions=["revoke"])
    def revoke(self, request: HttpRequest, queryset: QuerySet[ApiKey]) -> None:
        for key in few_enough(request, queryset):
            report(request, key, partial(_revoke, request, key))

    @admin.display(description="Key")
    def named(self, key: ApiKey) -> SafeString:
        return cell(key.name)

    @admin.display(description="Acts as")
    def person(self, key: ApiKey) -> SafeString:
        return cell(key.user.get_username() if key.user else f"key:{key.prefix}")

    @admin.display(description="Scopes")
    def scoped(self, key: ApiKey) -> SafeString:
        return cell(", ".join(key.scopes))

    @admin.display(description="Last used")
    def used(self, key: ApiKey) -> SafeString:
        return moment(key.last_used_at)

    @admin.display(description="Expires")
    def expires(self, key: ApiKey) -> SafeString:
        return cell(f"{key.expires_at:%Y-%m-%d %H:%M} UTC" if key.expires_at else "never")

    @admin.display(description="State")
    def standing(self, key: ApiKey) -> SafeString:
        if key.revoked_at:
            return format_html("{} {}", badge("withdrawn", "revoked"), moment(key.revoked_at))
        if key.expires_at and key.expires_at <= now():
            return badge("expired")
        if key.user and not key.user.is_active:
            return badge("withdrawn", "its person is switched off")
        if key.user is None and User.objects.filter(username=key.created_by, is_active=False).exists():
            return badge("expired", "usable; its maker is switched off")
        return badge("granted", "usable")


def _made(request: HttpRequest, form: KeyForm) -> tuple[ApiKey, str] | None:
    values, person = form.cleaned_data, request.user
    assert isinstance(person, User)
    try:
        _check_own(person, values["scopes"])
        key, token = keys.create(
            project=values["project"], name=values["name"], scopes=values["scopes"],
            user=person if values["as_me"] else None, by=person.get_username(),
            expires_at=now() + timedelta(days=values["days"]) if values["days"] else None,
        )  # fmt: skip
    except KernelError as error:
        form.add_error(None, shown(error.message))
        audit(request, None, f"no API key was made: {error.message}")
        return None
    until = f"until {key.expires_at:%Y-%m-%d}" if key.expires_at else "without end"
    audit(request, key, f"API key {key} of {key.project_id} made: {', '.join(key.scopes)}, {until}")
    return key, token


def _check_own(person: User, scopes: list[str]) -> None:
    """Raise Forbidden for a scope that the person does not have: a key is no way around one's own rights."""
    for scope, permission in PERMISSIONS.items():
        if scope in scopes and not person.has_perm(permission):
            raise Forbidden(f"you cannot hand out {scope}: it needs the permission {permission}")


def _revoke(request: HttpRequest, key: ApiKey) -> str:
    done = keys.revoke(key.id, by=request.user.get_username())
    return f"{key} is revoked" if done else f"{key} was revoked before"

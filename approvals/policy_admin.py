"""The rules in the console: a change is a new version, and a draft can be tried on past calls."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any
from uuid import UUID

from django import forms
from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils.decorators import method_decorator
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.views.decorators.http import require_http_methods

from approvals import policy, retirement, trials
from approvals.contracts import Rule
from approvals.models import QUORUM_MAX, Policy
from kernel_project.admin import FactAdmin, audit, badge, cell, demand, few_enough, moment, report
from kernel_project.primitives.canonical import canonical_json
from kernel_project.primitives.errors import Invalid, KernelError
from kernel_project.templatetags.kernel import duration
from kernel_project.visible_text import shown


class PolicyForm(forms.ModelForm):  # type: ignore[type-arg]
    """A rule as a person writes it. Number, author and time are the service's."""

    quorum = forms.IntegerField(
        required=False, min_value=1, max_value=QUORUM_MAX, initial=1,
        help_text="How many people must say yes; one no is enough.",
    )  # fmt: skip

    class Meta:
        model = Policy
        fields = [
            "project", "name", "agent", "tool", "effect", "arguments", "answer", "group", "quorum", "deadline_seconds",
            "on_expiry", "escalate_to", "four_eyes", "break_glass",
        ]  # fmt: skip

    def clean_quorum(self) -> int:
        return self.cleaned_data["quorum"] or 1

    def clean(self) -> dict[str, Any]:
        """Refuse what the service would refuse, with what was typed still there."""
        super().clean()
        values: dict[str, Any] = self.cleaned_data
        if not self.errors:
            try:
                policy.draft(values["project"], rule_of(values))
            except KernelError as error:
                raise forms.ValidationError(shown(error.message)) from None
        return values


def rule_of(values: dict[str, Any]) -> Rule:
    """The rule that a form describes."""
    wanted = {name: values[name] for name in PolicyForm.Meta.fields if name != "project"}
    conditions = wanted["arguments"] or []
    if not isinstance(conditions, list) or not all(isinstance(one, dict) for one in conditions):
        raise Invalid("conditions on arguments are a list of objects, each with a path")
    return Rule(**wanted | {"arguments": tuple(conditions)})


class InForceFilter(admin.SimpleListFilter):
    title = "in force"
    parameter_name = "in_force"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Iterable[tuple[str, str]]:
        return [("1", "in force"), ("0", "retired")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Policy]) -> QuerySet[Policy]:
        wanted = {"1": True, "0": False}.get(self.value() or "")
        return queryset if wanted is None else queryset.filter(retired_at__isnull=wanted)


@admin.register(Policy)
class PolicyAdmin(FactAdmin):
    """Rules. A version is never changed: saving writes the next one and retires the one before."""

    form = PolicyForm
    list_display = ["rule", "project", "matches", "says", "asked_of", "expiry", "eyes", "made", "retired"]
    list_filter = [InForceFilter]
    exact_texts = ["name", "project"]
    search_help_text = "A whole policy name or project"
    ordering = ["project", "name", "-version"]
    actions = ["retire"]
    list_before_template = "kernel/policies_head.html"

    def get_urls(self) -> list[URLPattern]:
        trial = path("try/", self.admin_site.admin_view(self.try_out), name="approvals_policy_try")
        return [trial, *super().get_urls()]

    @method_decorator(require_http_methods(["GET", "POST"]))
    def try_out(self, request: HttpRequest) -> HttpResponse:
        """What a draft would have decided on past calls. Puts nothing in force."""
        demand(request, "approvals.add_policy", None, "trying a policy")
        self.may_look(request)
        given = request.POST if request.method == "POST" else None
        form = PolicyForm(given, initial=self.get_changeform_initial_data(request))
        trial = None
        if form.is_bound and form.is_valid():
            trial = trials.try_rule(form.cleaned_data["project"], rule_of(form.cleaned_data))
        context = {
            **self.admin_site.each_context(request), "form": form, "trial": trial, "opts": self.opts,
            "title": "Try a policy", "calls_max": trials.CALLS_MAX,
        }  # fmt: skip
        return TemplateResponse(request, "kernel/policy_try.html", context)

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm("approvals.add_policy")

    def has_retire_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("approvals.change_policy")

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return [*PolicyForm.Meta.fields, *(["version", "created_by", "created_at", "retired_at"] if obj else [])]

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        """A new version starts from the one that `?from=` names."""
        wanted = request.GET.get("from", "")
        try:
            old = Policy.objects.filter(id=UUID(wanted)).values(*PolicyForm.Meta.fields).first() if wanted else None
        except ValueError:
            old = None
        return dict(old) if old else super().get_changeform_initial_data(request)

    def save_model(self, request: HttpRequest, obj: Policy, form: Any, change: bool) -> None:
        if change:
            raise PermissionDenied
        with transaction.atomic():
            saved, _ = policy.save(obj.project, rule_of(form.cleaned_data), request.user.get_username())
        obj.pk, obj.version, obj.created_by = saved.pk, saved.version, saved.created_by
        audit(request, saved, f"put policy {saved} of {saved.project} in force")

    @admin.action(description="Retire", permissions=["retire"])
    def retire(self, request: HttpRequest, queryset: QuerySet[Policy]) -> None:
        for rule in few_enough(request, queryset):
            report(request, rule, partial(_retire, rule))

    @admin.display(description="Policy")
    def rule(self, rule: Policy) -> SafeString:
        return format_html("{} {}", cell(rule), badge("granted", "in force") if rule.retired_at is None else "")

    @admin.display(description="Matches")
    def matches(self, rule: Policy) -> SafeString:
        effect = badge(rule.effect) if rule.effect else ""
        conditions = cell(canonical_json(rule.arguments)) if rule.arguments else ""
        names = format_html('<span class="k-mono">{} → {}</span>', cell(rule.agent), cell(rule.tool))
        return format_html("{} {} {}", names, effect, conditions)

    @admin.display(description="Says")
    def says(self, rule: Policy) -> SafeString:
        return badge(rule.answer, rule.get_answer_display())

    @admin.display(description="Asks")
    def asked_of(self, rule: Policy) -> SafeString:
        if rule.answer != "require":
            return cell("–")
        several = f"{rule.quorum} of " if rule.quorum > 1 else ""
        return cell(f"{several}{rule.group or 'any approver'}")

    @admin.display(description="Without a decision")
    def expiry(self, rule: Policy) -> str:
        if rule.answer != "require":
            return "–"
        named = f" {rule.escalate_to}" if rule.escalate_to else ""
        return f"{rule.get_on_expiry_display()}{named} after {duration(rule.deadline_seconds)}"

    @admin.display(description="Four eyes", boolean=True)
    def eyes(self, rule: Policy) -> bool:
        return rule.four_eyes

    @admin.display(description="Made")
    def made(self, rule: Policy) -> SafeString:
        return format_html("{} by {}", moment(rule.created_at), cell(rule.created_by))

    @admin.display(description="Retired")
    def retired(self, rule: Policy) -> SafeString:
        return moment(rule.retired_at)


def _retire(rule: Policy) -> str:
    return f"{rule} retired" if retirement.retire(rule.id) else f"{rule} was retired before"

"""The approval queue, the page on which a person decides, and the policies. Decides by `services.decide` alone."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import partial
from typing import Any
from uuid import UUID

from django import forms
from django.contrib import admin, messages
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.db import connection, transaction
from django.db.models import Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.decorators import method_decorator
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.views.decorators.http import require_POST, require_safe

from approvals import policy, retirement, services
from approvals.contracts import Decider, Rule
from approvals.models import Approval, Policy
from kernel_project.admin import ChoiceFilter, FactAdmin, audit, badge, cell, demand, few_enough, moment, report
from kernel_project.primitives.canonical import parse_json
from kernel_project.primitives.errors import Invalid, KernelError
from kernel_project.templatetags.kernel import duration
from kernel_project.visible_text import hidden_count, look_alikes

DECIDE = "approvals.decide_approval"
DECISIONS_SHOWN_MAX = 50
URGENT_SECONDS = 15 * 60  # what is left of the time when a request turns amber
BINDING_CHARS_MAX = 200_000  # of arguments on the page; a longer call is said to be cut and cannot be approved here


class ApprovalStateFilter(ChoiceFilter):
    title = "state"
    parameter_name = "state"
    column = "state"
    choices_offered = Approval.State.choices
    indexed = frozenset({"waiting"})
    newest_first = ("-run_id",)
    edge_column = "run_id"


class MineFilter(admin.SimpleListFilter):
    """Requests that the person who looks may decide, as far as groups go."""

    title = "who may decide"
    parameter_name = "mine"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Iterable[tuple[str, str]]:
        return [("1", "I may")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Approval]) -> QuerySet[Approval]:
        if self.value() != "1":
            return queryset
        decider = decider_of(request)
        mine = Q() if decider.superuser else Q(group="") | Q(group__in=decider.groups)
        return queryset.filter(mine, state=Approval.State.WAITING)


@admin.register(Approval)
class ApprovalAdmin(FactAdmin):
    """Requests: one page each, one decision each. There is no way to approve several at once."""

    list_display = ["call", "where", "deadline", "agent_name", "project", "asked_of", "asked_by", "asked"]
    list_filter = [ApprovalStateFilter, MineFilter]
    exact_ids = ["id", "operation_id", "run_id"]
    search_help_text = "A whole request, operation or run id"
    change_form_template = "kernel/approval.html"

    def get_queryset(self, request: HttpRequest) -> QuerySet[Approval]:
        return super().get_queryset(request).defer("binding")

    def get_ordering(self, request: HttpRequest) -> list[str]:
        """The queue by deadline, as its index has it; everything else newest run first."""
        queue = request.GET.get("state") == "waiting" or request.GET.get("mine") == "1"
        return ["deadline_at", "id"] if queue else ["-run_id", "-requested_at", "id"]

    def get_urls(self) -> list[URLPattern]:
        decide = path(
            "<uuid:approval_id>/decide/", self.admin_site.admin_view(self.decide), name="approvals_approval_decide"
        )
        return [decide, *super().get_urls()]

    @admin.display(description="Call")
    def call(self, approval: Approval) -> SafeString:
        return format_html('<span class="k-mono">{}</span> {}', cell(approval.tool), badge(approval.effect))

    @admin.display(description="State")
    def where(self, approval: Approval) -> SafeString:
        return badge(approval.state)

    @admin.display(description="Deadline")
    def deadline(self, approval: Approval) -> SafeString:
        if approval.state != Approval.State.WAITING:
            return format_html('<span class="k-dim">{}</span>', moment(approval.deadline_at))
        left = (approval.deadline_at - database_time()).total_seconds()
        text = f"in {duration(left)}" if left > 0 else f"{duration(-left)} ago"
        return badge("uncertain" if left < URGENT_SECONDS else "waiting", text)

    @admin.display(description="Agent")
    def agent_name(self, approval: Approval) -> SafeString:
        return cell(approval.agent)

    @admin.display(description="Asked of")
    def asked_of(self, approval: Approval) -> SafeString:
        return cell(approval.group or "any approver")

    @admin.display(description="Run started by")
    def asked_by(self, approval: Approval) -> SafeString:
        return cell(approval.requested_by)

    @admin.display(description="Asked")
    def asked(self, approval: Approval) -> SafeString:
        return moment(approval.requested_at)

    @method_decorator(require_safe)
    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """The request with everything that a yes would cover."""
        self.may_look(request)
        approval = self._get(object_id)
        context = {
            **self.admin_site.each_context(request),
            **_page(request, approval),
            "opts": self.opts,
            "original": approval,
            "title": "Approval request",
        }
        return TemplateResponse(request, "kernel/approval.html", context)

    def _get(self, object_id: str | UUID) -> Approval:
        try:
            found = Approval.objects.select_related("policy").filter(id=UUID(str(object_id))).first()
        except ValueError:
            found = None
        if found is None:
            raise Http404("there is no such approval request")
        return found

    @method_decorator(require_POST)
    def decide(self, request: HttpRequest, approval_id: UUID) -> HttpResponse:
        """Approve or reject one request in the name of the person whose session this is."""
        approval = self._get(approval_id)
        demand(request, DECIDE, approval, "deciding")
        self.may_look(request)
        verdict, reason = request.POST.get("verdict", ""), request.POST.get("reason", "").strip()
        report(request, approval, lambda: _decide(request, approval, verdict, reason))
        return HttpResponseRedirect(reverse("admin:approvals_approval_change", args=[approval.id]))


def _decide(request: HttpRequest, approval: Approval, verdict: str, reason: str) -> str:
    if verdict not in ("approve", "reject"):
        raise Invalid("choose to approve or to reject")
    if verdict == "reject" and not reason:
        raise Invalid("say why it is rejected: the agent is told your reason")
    if verdict == "approve" and _cut(approval):
        raise Invalid("the arguments are too long to be shown in full, so they cannot be approved here")
    decided = services.decide(approval.id, approval.project, decider_of(request), verdict, reason)  # type: ignore[arg-type]
    return f"{decided.tool}: {decided.state} by {decided.decided_by}"


def decider_of(request: HttpRequest) -> Decider:
    """Who decides: the session says so, nothing in the request does."""
    assert isinstance(request.user, User)
    name = request.user.get_username()
    groups = frozenset(request.user.groups.values_list("name", flat=True))
    return Decider(
        name=name, groups=groups, via="admin", names=frozenset({name}), superuser=request.user.is_superuser
    )  # fmt: skip


def database_time() -> Any:
    """The clock that deadlines are judged by."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        return cursor.fetchone()[0]


def _cut(approval: Approval) -> bool:
    return len(approval.binding) > BINDING_CHARS_MAX


def _page(request: HttpRequest, approval: Approval) -> dict[str, Any]:
    bound = parse_json(approval.binding)
    arguments = laid_out(bound["arguments"])
    at = database_time()
    left = (approval.deadline_at - at).total_seconds()
    waiting = approval.state == Approval.State.WAITING
    return {
        "approval": approval,
        "bound": {name: bound[name] for name in ("definition", "agent_version") if bound.get(name)},
        "arguments": arguments,
        "arguments_cut": _cut(approval),
        "hidden": hidden_count(arguments),
        "look_alikes": look_alikes(f"{approval.tool} {approval.agent} {arguments}"),
        "decisions": approval.decisions.order_by("-at")[:DECISIONS_SHOWN_MAX],
        "left": left,
        "urgent": left < URGENT_SECONDS,
        "late": waiting and left <= 0,
        "offered": waiting and left > 0 and request.user.has_perm(DECIDE),
        "obstacle": _obstacle(request, approval),
    }


def _obstacle(request: HttpRequest, approval: Approval) -> str:
    """Why this person's yes would be refused, told before they try; the service judges again."""
    if not request.user.has_perm(DECIDE):
        return "You may look at this request, but not decide it."
    decider = decider_of(request)
    if approval.group and approval.group not in decider.groups and not decider.superuser:
        return f"Only members of the group {approval.group} may decide this request."
    if approval.four_eyes and approval.requested_by in decider.names:
        return "You started this run, and its calls need somebody else's yes. You may reject."
    return ""


def laid_out(arguments: Any) -> str:
    """Arguments with a line for each member, every character in its place."""
    return json.dumps(arguments, indent=2, ensure_ascii=False)


class PolicyForm(forms.ModelForm):  # type: ignore[type-arg]
    """A rule as a person writes it. Number, author and time are the service's."""

    class Meta:
        model = Policy
        fields = [
            "project", "name", "agent", "tool", "effect", "answer", "group", "deadline_seconds", "on_expiry",
            "four_eyes",
        ]  # fmt: skip


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

    def add_view(
        self, request: HttpRequest, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        try:
            return super().add_view(request, form_url, extra_context)
        except KernelError as error:
            messages.error(request, error.message)
            return HttpResponseRedirect(request.get_full_path())

    def save_model(self, request: HttpRequest, obj: Policy, form: Any, change: bool) -> None:
        if change:
            raise PermissionDenied
        values = {name: form.cleaned_data[name] for name in PolicyForm.Meta.fields if name != "project"}
        with transaction.atomic():
            saved, _ = policy.save(obj.project, Rule(**values), request.user.get_username())
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
        return format_html('<span class="k-mono">{} → {}</span> {}', cell(rule.agent), cell(rule.tool), effect)

    @admin.display(description="Says")
    def says(self, rule: Policy) -> SafeString:
        return badge(rule.answer, rule.get_answer_display())

    @admin.display(description="Asks")
    def asked_of(self, rule: Policy) -> SafeString:
        return cell(rule.group or "any approver") if rule.answer == "require" else cell("–")

    @admin.display(description="Without a decision")
    def expiry(self, rule: Policy) -> str:
        if rule.answer != "require":
            return "–"
        return f"{rule.get_on_expiry_display()} after {duration(rule.deadline_seconds)}"

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

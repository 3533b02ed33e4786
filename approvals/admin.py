"""The approval queue and the page on which a person decides. Decides by `services` alone, one request at a time."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

from django.contrib import admin, messages
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.db.models import DateTimeField, Func, QuerySet
from django.db.models.functions import Now
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.decorators import method_decorator
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from approvals import calls, channel_admin, policy_admin, redaction, selectors, services
from approvals.contracts import Decider
from approvals.models import Approval
from kernel_project.admin import ChoiceFilter, FactAdmin, audit, badge, cell, demand, few_enough, moment, report
from kernel_project.primitives.canonical import canonical_json, parse_json
from kernel_project.primitives.errors import Forbidden, Invalid, KernelError
from kernel_project.templatetags.kernel import duration
from kernel_project.visible_text import SHOWN_CHARS_MAX, hidden_count, look_alikes, shown
from outbox.models import Event

PAGES = (channel_admin, policy_admin)  # Django looks for pages in this module only
DECIDE = "approvals.decide_approval"
BREAK_GLASS = "approvals.break_glass_approval"
DECISIONS_SHOWN_MAX = 50
EVENTS_SHOWN_MAX = 15
ROWS_PER_PAGE = 25  # a row with a box to tick is dear, and the first ones are the urgent ones
URGENT_SECONDS = 15 * 60  # what is left of the time when a request turns amber
EDIT_CHARS_MAX = 200_000
REVEALED = "revealed the redacted texts"  # in the audit list, by which the page knows whom to show them
COUNTDOWNS = (("900", "15 minutes"), ("3600", "an hour"), ("86400", "a day"))
AGES = (("3600", "an hour"), ("86400", "a day"), ("604800", "a week"))


class ApprovalStateFilter(ChoiceFilter):
    title = "state"
    parameter_name = "state"
    column = "state"
    choices_offered = Approval.State.choices
    indexed = frozenset({"waiting"})
    newest_first = ("-run_id",)
    edge_column = "run_id"


class QueueFilter(admin.SimpleListFilter):
    """A filter on what waits, and on nothing else: those rows have an index of their own."""

    def queryset(self, request: HttpRequest, queryset: QuerySet[Approval]) -> QuerySet[Approval]:
        value = self.value()
        offered = {str(one) for one, _ in self.lookup_choices}
        if value not in offered:
            return queryset
        return self.narrowed(request, queryset.filter(state=Approval.State.WAITING), value)

    def narrowed(self, request: HttpRequest, waiting: QuerySet[Approval], value: str) -> QuerySet[Approval]:
        raise NotImplementedError


class MineFilter(QueueFilter):
    """Requests for the groups of the person who looks, or that this person may say yes to now."""

    title = "who may decide"
    parameter_name = "mine"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Iterable[tuple[str, str]]:
        return [("1", "I may"), ("groups", "asked of my groups")]

    def narrowed(self, request: HttpRequest, waiting: QuerySet[Approval], value: str) -> QuerySet[Approval]:
        decider = decider_of(request)
        return selectors.decidable(waiting, decider) if value == "1" else waiting.filter(group__in=decider.groups)


class RiskFilter(QueueFilter):
    title = "risk, of what waits"
    parameter_name = "risk"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Iterable[tuple[str, str]]:
        return [(str(value), label) for value, label in Approval.Risk.choices]

    def narrowed(self, request: HttpRequest, waiting: QuerySet[Approval], value: str) -> QuerySet[Approval]:
        return waiting.filter(risk=int(value))


class CountdownFilter(QueueFilter):
    title = "time left"
    parameter_name = "left"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Iterable[tuple[str, str]]:
        return [("0", "over"), *((seconds, f"less than {name}") for seconds, name in COUNTDOWNS)]

    def narrowed(self, request: HttpRequest, waiting: QuerySet[Approval], value: str) -> QuerySet[Approval]:
        return waiting.filter(deadline_at__lte=Now() + timedelta(seconds=int(value)))


class AgeFilter(QueueFilter):
    title = "waits"
    parameter_name = "age"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Iterable[tuple[str, str]]:
        return [(seconds, f"for more than {name}") for seconds, name in AGES]

    def narrowed(self, request: HttpRequest, waiting: QuerySet[Approval], value: str) -> QuerySet[Approval]:
        return waiting.filter(requested_at__lte=Now() - timedelta(seconds=int(value)))


QUEUE_PARAMETERS = ("mine", "risk", "left", "age")


@admin.register(Approval)
class ApprovalAdmin(FactAdmin):
    """Requests: one page each, one decision each. Several can be rejected at once, and never approved."""

    list_display = ["call", "where", "deadline", "risk_of", "agent_name", "project", "asked_of", "asked_by", "asked"]
    list_filter = [ApprovalStateFilter, MineFilter, RiskFilter, CountdownFilter, AgeFilter]
    exact_ids = ["id", "operation_id", "run_id"]
    search_help_text = "A whole request, operation or run id"
    change_form_template = "kernel/approval.html"
    actions = ["reject_selected"]
    list_per_page = ROWS_PER_PAGE

    def get_queryset(self, request: HttpRequest) -> QuerySet[Approval]:
        rows: QuerySet[Approval] = super().get_queryset(request)
        return rows.defer("binding").annotate(looked_at=database_clock())

    def get_ordering(self, request: HttpRequest) -> list[str]:
        """The queue by deadline, as its index has it; everything else newest run first."""
        queue = request.GET.get("state") == "waiting" or any(request.GET.get(name) for name in QUEUE_PARAMETERS)
        return ["deadline_at", "id"] if queue else ["-run_id", "-requested_at", "id"]

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view
        decide = path("<uuid:approval_id>/decide/", view(self.decide), name="approvals_approval_decide")
        edit = path("<uuid:approval_id>/edit/", view(self.edit), name="approvals_approval_edit")
        reveal = path("<uuid:approval_id>/reveal/", view(self.reveal), name="approvals_approval_reveal")
        return [decide, edit, reveal, *super().get_urls()]

    def has_decide_permission(self, request: HttpRequest) -> bool:
        assert isinstance(request.user, User)
        return request.user.has_perm(DECIDE)

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
        left = seconds_left(approval)
        text = f"in {duration(left)}" if left > 0 else f"{duration(-left)} ago"
        return badge("uncertain" if left < URGENT_SECONDS else "waiting", text)

    @admin.display(description="Risk")
    def risk_of(self, approval: Approval) -> SafeString:
        return badge(Approval.Risk(approval.risk).label)

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

    @admin.action(description="Reject with one reason…", permissions=["decide"])
    def reject_selected(self, request: HttpRequest, queryset: QuerySet[Approval]) -> HttpResponse | None:
        """Ask for the reason, then reject each by itself. There is no action that approves."""
        chosen = few_enough(request, queryset)
        reason = request.POST.get("reason", "").strip()
        if chosen and not reason:
            if "reason" in request.POST:
                messages.error(request, "say why they are rejected: each agent is told your reason")
            context = {
                **self.admin_site.each_context(request),
                "approvals": chosen,
                "opts": self.opts,
                "title": "Reject",
            }
            return TemplateResponse(request, "kernel/reject_many.html", context)
        for approval in chosen:
            report(request, approval, partial(_decide, request, approval, "reject", reason))
        return None

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
        rows = Approval.objects.select_related("policy").annotate(looked_at=database_clock())
        try:
            found = rows.filter(id=UUID(str(object_id))).first()
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
        report(request, approval, partial(_decide, request, approval, verdict, reason))
        return HttpResponseRedirect(reverse("admin:approvals_approval_change", args=[approval.id]))

    @method_decorator(require_POST)
    def reveal(self, request: HttpRequest, approval_id: UUID) -> HttpResponse:
        """Show this person the redacted texts of a request from now on; that they asked for it is written down."""
        approval = self._get(approval_id)
        demand(request, DECIDE, approval, "revealing redacted texts")
        self.may_look(request)
        report(request, approval, partial(_reveal, request, approval))
        return HttpResponseRedirect(reverse("admin:approvals_approval_change", args=[approval.id]))

    @method_decorator(require_http_methods(["GET", "POST"]))
    def edit(self, request: HttpRequest, approval_id: UUID) -> HttpResponse:
        """Write other arguments; the request that comes of it is the one that can be decided."""
        approval = self._get(approval_id)
        demand(request, DECIDE, approval, "editing a call")
        self.may_look(request)
        text, reason = request.POST.get("arguments", ""), request.POST.get("reason", "").strip()
        if request.method == "POST":
            try:
                made = services.edit(approval.id, approval.project, decider_of(request), _typed(approval, text), reason)
            except KernelError as error:
                messages.error(request, shown(error.message))
                audit(request, approval, f"not edited: {error.message}")
            else:
                messages.success(
                    request, "This is the new request, with your arguments. Nothing runs without a yes to it."
                )
                audit(request, made, f"edited the arguments of request {approval.id}")
                return HttpResponseRedirect(reverse("admin:approvals_approval_change", args=[made.id]))
        context = {
            **self.admin_site.each_context(request),
            "approval": approval,
            "text": text or _text_to_edit(approval),
            "reason": reason,
            "obstacle": _obstacle(request, approval, "edit"),
            "opts": self.opts,
            "original": approval,
            "title": "Edit the arguments",
        }
        return TemplateResponse(request, "kernel/approval_edit.html", context)


def _typed(approval: Approval, text: str) -> Any:
    """What a person typed, with the secrets that were shown as marks put back."""
    if len(text) > EDIT_CHARS_MAX:
        raise Invalid(f"the arguments are longer than {EDIT_CHARS_MAX} characters")
    return redaction.restored(parse_json(text), calls.owner().arguments(approval))


def _text_to_edit(approval: Approval) -> str:
    if approval.state != Approval.State.WAITING or _damaged(approval):
        return ""
    return laid_out(redaction.redacted(calls.owner().arguments(approval)))


def _decide(request: HttpRequest, approval: Approval, verdict: str, reason: str) -> str:
    break_glass = verdict == "break_glass"
    if verdict not in ("approve", "reject", "break_glass"):
        raise Invalid("choose to approve or to reject")
    if verdict == "reject" and not reason:
        raise Invalid("say why it is rejected: the agent is told your reason")
    look = _look(request, approval)
    if verdict != "reject" and look.cut:
        raise Invalid("the arguments are too long to be shown in full, so they cannot be approved here")
    if verdict != "reject" and look.masked:
        raise Invalid("texts of this call are redacted, so nobody has seen what would be sent: reveal them first")
    decided = services.decide(
        approval.id, approval.project, decider_of(request), "reject" if verdict == "reject" else "approve", reason,
        break_glass=break_glass,
    )  # fmt: skip
    if decided.state == Approval.State.WAITING:
        return f"{decided.tool}: your yes counts; {decided.quorum} people must say yes"
    return f"{decided.tool}: {decided.state} by {decided.decided_by}"


def decider_of(request: HttpRequest) -> Decider:
    """Who decides: the session says so, nothing in the request does."""
    assert isinstance(request.user, User)
    name = request.user.get_username()
    groups = frozenset(request.user.groups.values_list("name", flat=True))
    return Decider(
        name=name, groups=groups, via="admin", names=frozenset({name}),
        may_break_glass=request.user.has_perm(BREAK_GLASS),
    )  # fmt: skip


def database_clock() -> Func:
    """The clock that deadlines are judged by."""
    return Func(function="clock_timestamp", output_field=DateTimeField())


def seconds_left(approval: Approval) -> float:
    """What was left of its time when the row was read, by the database's clock."""
    looked_at: datetime = approval.looked_at  # type: ignore[attr-defined]
    return (approval.deadline_at - looked_at).total_seconds()


def _reveal(request: HttpRequest, approval: Approval) -> str:
    if approval.state != Approval.State.WAITING or not _may_say_something(request, approval):
        raise Forbidden("redacted texts are revealed to those who may decide this request, while it waits")
    return REVEALED


def _may_say_something(request: HttpRequest, approval: Approval) -> bool:
    decider = decider_of(request)
    refusals = (
        services.why_not(approval, decider, "reject"),
        services.why_not(approval, decider, "approve", break_glass=True),
    )
    return not all(refusals)


def _revealed(request: HttpRequest, approval: Approval) -> bool:
    """Whether this person has asked to see the redacted texts of this request and may still decide."""
    assert isinstance(request.user, User)
    asked = LogEntry.objects.filter(
        user=request.user, content_type__app_label="approvals", content_type__model="approval",
        object_id=str(approval.pk), change_message__startswith=REVEALED,
    )  # fmt: skip
    return request.user.has_perm(DECIDE) and asked.exists()


@dataclass(frozen=True)
class _Look:
    """The arguments of a request as its page prints them for one person; nothing of a damaged one.

    `safe` has no secret in it, whoever looks; `text` is what is printed, with `masked` texts left out.
    """

    safe: Any
    text: str
    redactions: int
    masked: bool

    @property
    def cut(self) -> bool:
        """Whether the page would leave out a part of what it prints."""
        return len(self.text) > SHOWN_CHARS_MAX


def _look(request: HttpRequest, approval: Approval) -> _Look:
    original = {} if _damaged(approval) else parse_json(approval.binding)["arguments"]
    safe = redaction.redacted(original)
    redactions = redaction.count(original, safe)
    masked = bool(redactions) and not _revealed(request, approval)
    return _Look(safe, laid_out(safe if masked else original), redactions, masked)


def _damaged(approval: Approval) -> bool:
    """The stored text is not the one that was asked about: nobody can say what it was."""
    return services.damaged(approval)


def _page(request: HttpRequest, approval: Approval) -> dict[str, Any]:
    damaged = _damaged(approval)
    bound = {} if damaged else parse_json(approval.binding)
    look = _look(request, approval)
    left = seconds_left(approval)
    waiting = approval.state == Approval.State.WAITING
    votes = list(approval.decisions.order_by("-at")[:DECISIONS_SHOWN_MAX])
    return {
        "approval": approval,
        "bound": {name: bound[name] for name in ("server", "definition", "agent_version", "twin") if bound.get(name)},
        "arguments": look.text,
        "arguments_cut": look.cut,
        "damaged": damaged,
        "redactions": look.redactions,
        "masked": look.masked,
        "changes": _changes(approval, look.safe),
        "hidden": hidden_count(look.text),
        "look_alikes": look_alikes(f"{approval.tool} {approval.agent} {look.text}"),
        "decisions": votes,
        "votes": sum(one.applied and one.verdict == "approve" for one in votes),
        "risk": Approval.Risk(approval.risk).label,
        "run_so_far": _run_so_far(approval),
        "left": left,
        "urgent": left < URGENT_SECONDS,
        "late": waiting and left <= 0,
        "successor": selectors.successor(approval),
        **_offers(request, approval, look, open_still=waiting and left > 0),
    }


def _offers(request: HttpRequest, approval: Approval, look: _Look, *, open_still: bool) -> dict[str, Any]:
    """What this person may do now. Told before they try; the service judges again."""
    assert isinstance(request.user, User)
    allowed = open_still and request.user.has_perm(DECIDE)
    obstacle, rejecting = _obstacle(request, approval, "approve"), _obstacle(request, approval, "reject")
    whole = not (look.cut or look.masked or _damaged(approval))
    decider = decider_of(request)
    refused = services.why_not(approval, decider, "approve", break_glass=True)
    alone = not refused and not services.has_voted(approval, decider)
    return {
        "obstacle": obstacle,
        "may_approve": allowed and whole and not obstacle,
        "may_reject": allowed and not rejecting,
        "may_reveal": allowed and look.masked and _may_say_something(request, approval),
        "may_edit": allowed and not rejecting and not _damaged(approval),
        "may_break_glass": allowed and whole and alone and (approval.quorum > 1 or bool(obstacle)),
    }


def _obstacle(request: HttpRequest, approval: Approval, verdict: services.Try) -> str:
    """Why this person would be refused."""
    assert isinstance(request.user, User)
    if not request.user.has_perm(DECIDE):
        return "You may look at this request, but not decide it."
    decider = decider_of(request)
    if why := services.why_not(approval, decider, "reject"):
        return f"{why[0].upper()}{why[1:]}."
    if verdict != "approve":
        return ""
    if services.why_not(approval, decider, "approve"):
        own = "started this run" if services.is_own(approval.requested_by, decider) else "wrote these arguments"
        return f"You {own}, and its calls need somebody else's yes. You may reject."
    return "You have said yes; it waits for the others." if services.has_voted(approval, decider) else ""


def _changes(approval: Approval, arguments: Any) -> list[dict[str, str]]:
    """What an edit changed at the top level, against the request that it superseded."""
    if not approval.edited_by or not approval.supersedes:
        return []
    before = Approval.objects.filter(id=approval.supersedes).first()
    if before is None or _damaged(before):
        return []
    old = redaction.redacted(parse_json(before.binding)["arguments"])
    names = sorted({*old, *arguments} if isinstance(old, dict) and isinstance(arguments, dict) else ())
    return [
        {"name": name, "before": _member(old, name), "after": _member(arguments, name)}
        for name in names
        if _member(old, name) != _member(arguments, name)
    ]


def _member(arguments: dict[str, Any], name: str) -> str:
    return canonical_json(arguments[name]) if name in arguments else "–"


def _run_so_far(approval: Approval) -> list[dict[str, Any]]:
    """The latest events of the run, the newest first: what it did, in the journal's words."""
    rows = Event.objects.filter(run_id=approval.run_id).order_by("-sequence")[:EVENTS_SHOWN_MAX]
    return [_happening(row.type, row.occurred_at, json.loads(row.envelope)["data"], approval) for row in rows]


def _happening(event_type: str, at: datetime, data: dict[str, Any], approval: Approval) -> dict[str, Any]:
    about = data.get("tool") or data.get("model") or data.get("agent") or ""
    return {
        "type": event_type, "at": at, "about": about, "status": data.get("status") or data.get("policy_decision") or "",
        "this": data.get("operation_id") == str(approval.operation_id),
    }  # fmt: skip


def laid_out(arguments: Any) -> str:
    """Arguments with a line for each member, every character in its place."""
    return json.dumps(arguments, indent=2, ensure_ascii=False)

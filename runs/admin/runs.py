"""Runs in the console: the list, the page with its timeline, and the wish to stop. Moves nothing by itself."""

from __future__ import annotations

from functools import partial
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from django.conf import settings
from django.contrib import admin
from django.contrib.auth.models import User
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.decorators import method_decorator
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.views.decorators.http import require_POST, require_safe

from kernel_project.admin import (
    ChoiceFilter,
    FactAdmin,
    audit,
    badge,
    cell,
    demand,
    few_enough,
    moment,
    report,
    short_id,
    wide_cell,
)
from kernel_project.primitives.ids import workflow_id
from outbox.contracts import Actor
from runs import dashboard_selectors as reads
from runs import selectors
from runs.loop import endings, resumes
from runs.models import Run
from runs.transcript_page import conversation

CANCEL = "runs.cancel_run"
RESUME = "runs.resume_run"
READ_BODIES = "runs.view_artifact"
REFRESH_SECONDS = 2
SCRIPTED = "scripted:"
CHILDREN_SHOWN_MAX = 50
NUMBER_DIGITS_MAX = 9  # more would leave PostgreSQL's integers


class RunStateFilter(ChoiceFilter):
    title = "state"
    parameter_name = "state"
    column = "state"
    choices_offered = Run.State.choices
    indexed = frozenset(Run.LIVE)
    newest_first = ("-id",)
    edge_column = "id"


@admin.register(Run)
class RunAdmin(FactAdmin):
    """Durable runs, the newest first."""

    list_display = ["short", "where", "agent", "turn", "waits", "asked_by", "born", "took"]
    list_filter = [RunStateFilter]
    list_select_related = ["agent_version__agent"]
    ordering = ["-id"]
    exact_ids = ["id"]
    search_help_text = "A whole run id"
    actions = ["cancel_selected", "resume_selected"]

    def has_cancel_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm(CANCEL)

    def has_resume_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm(RESUME)

    def get_urls(self) -> list[URLPattern]:
        guarded = self.admin_site.admin_view
        return [
            path("<uuid:run_id>/live/", guarded(self.live), name="runs_run_live"),
            path("<uuid:run_id>/cancel/", guarded(self.cancel), name="runs_run_cancel"),
            path("<uuid:run_id>/transcript/", guarded(self.transcript), name="runs_run_transcript"),
            path("<uuid:run_id>/resume/", guarded(self.resume), name="runs_run_resume"),
            *super().get_urls(),
        ]

    @admin.display(description="Run")
    def short(self, run: Run) -> SafeString:
        return short_id(run.id)

    @admin.display(description="State")
    def where(self, run: Run) -> SafeString:
        return badge(run.state)

    @admin.display(description="Agent")
    def agent(self, run: Run) -> SafeString:
        scripted = format_html(" {}", badge("idle", "scripted")) if is_scripted(run) else ""
        return format_html("{}{}", cell(run.agent_version), scripted)

    @admin.display(description="Waits for")
    def waits(self, run: Run) -> SafeString:
        return wide_cell(run.waiting_for or run.failure_message or run.failure_code)

    @admin.display(description="Started by")
    def asked_by(self, run: Run) -> SafeString:
        return cell(run.started_by)

    @admin.display(description="Started")
    def born(self, run: Run) -> SafeString:
        return moment(run.created_at)

    @admin.display(description="Ended")
    def took(self, run: Run) -> SafeString:
        return moment(run.ended_at)

    @admin.action(description="Cancel", permissions=["cancel"])
    def cancel_selected(self, request: HttpRequest, queryset: QuerySet[Run]) -> None:
        for run in few_enough(request, queryset):
            report(request, run, partial(_cancel, request, run, "cancelled from the list of runs"))

    @admin.action(description="Resume", permissions=["resume"])
    def resume_selected(self, request: HttpRequest, queryset: QuerySet[Run]) -> None:
        for run in few_enough(request, queryset):
            report(request, run, partial(_resume, request, run))

    @method_decorator(require_safe)
    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """The run as a timeline."""
        self.may_look(request)
        run = _get(object_id)
        context = {
            **self.admin_site.each_context(request),
            **_page(request, run),
            "opts": self.opts,
            "original": run,
            "title": "Run",
        }
        return TemplateResponse(request, "kernel/run.html", context)

    @method_decorator(require_safe)
    def live(self, request: HttpRequest, run_id: UUID) -> HttpResponse:
        """The part of the page that changes while the run lives."""
        self.may_look(request)
        return render(request, "kernel/run_live.html", _page(request, _get(run_id)))

    @method_decorator(require_POST)
    def cancel(self, request: HttpRequest, run_id: UUID) -> HttpResponse:
        """Ask one run to stop."""
        run = _get(run_id)
        demand(request, CANCEL, run, "cancelling")
        report(request, run, partial(_cancel, request, run, request.POST.get("reason", "").strip()))
        return HttpResponseRedirect(reverse("admin:runs_run_change", args=[run.id]))

    @method_decorator(require_POST)
    def transcript(self, request: HttpRequest, run_id: UUID) -> HttpResponse:
        """What was said in the run. By POST, because it leaves a line in the audit."""
        run = _get(run_id)
        demand(request, READ_BODIES, run, "reading a transcript")
        self.may_look(request)
        found = conversation(run, _number(request.POST.get("last", "")))
        audit(request, run, f"read the transcript, turns {found.first_turn} to {found.last_turn}")
        context = {
            **self.admin_site.each_context(request),
            "run": run, "conversation": found, "opts": self.opts, "original": run, "title": "Transcript",
        }  # fmt: skip
        return TemplateResponse(request, "kernel/transcript.html", context)

    @method_decorator(require_POST)
    def resume(self, request: HttpRequest, run_id: UUID) -> HttpResponse:
        """Let one failed run go on."""
        run = _get(run_id)
        demand(request, RESUME, run, "resuming")
        report(request, run, partial(_resume, request, run))
        return HttpResponseRedirect(reverse("admin:runs_run_change", args=[run.id]))


def _resume(request: HttpRequest, run: Run) -> str:
    assert isinstance(request.user, User)
    by = Actor(id=request.user.get_username(), type="human")
    resumed = resumes.resume(run.id, run.project_id, by)
    return f"run {resumed.id} goes on: nothing that succeeded or is uncertain is done again"


def _cancel(request: HttpRequest, run: Run, reason: str) -> str:
    assert isinstance(request.user, User)
    by = Actor(id=request.user.get_username(), type="human")
    asked = endings.request_cancel(run.id, run.project_id, by, reason.replace("\x00", ""))
    return f"run {asked.id} is asked to stop: no effect of it starts from now on"


def _get(object_id: str | UUID) -> Run:
    try:
        found = Run.objects.select_related("agent_version__agent").filter(id=UUID(str(object_id))).first()
    except ValueError:
        found = None
    if found is None:
        raise Http404("there is no such run")
    return found


def is_scripted(run: Run) -> bool:
    """Whether a script answers in the place of a model: that must be seen wherever the run is."""
    return str(run.agent_version.definition.get("model", "")).startswith(SCRIPTED)


def _page(request: HttpRequest, run: Run) -> dict[str, Any]:
    bodies = request.user.has_perm(READ_BODIES)
    before, after = _place(request.GET.get("before", "")), _number(request.GET.get("after", ""))
    return {
        "run": run,
        "agent": run.agent_version.agent,
        "definition": run.agent_version.definition,
        "scripted": is_scripted(run),
        "timeline": reads.timeline(run, before, after),
        "input": reads.body(run.id, run.input_digest) if bodies else reads.Body(problem="you may not read bodies"),
        "result": reads.answer(run.id, run.result_digest) if bodies else None,
        "children": _children(run),
        "children_more": selectors.children_of(run.id).count() > CHILDREN_SHOWN_MAX,
        "is_live": run.state in Run.LIVE,
        "took": (run.ended_at - run.created_at).total_seconds() if run.ended_at else None,
        "paged": bool(before or after is not None),
        "may_read": bodies,
        "holds": reads.holds_on(run.project_id, run.id),
        "may_resume": request.user.has_perm(RESUME) and run.state == Run.State.FAILED,
        "may_cancel": request.user.has_perm(CANCEL) and run.state in Run.LIVE and run.cancel_requested_at is None,
        "temporal_url": _temporal_url(run.id),
        "event_store_url": _event_store_url(request, run),
        "refresh_seconds": REFRESH_SECONDS,
    }


def _children(run: Run) -> list[Run]:
    """The latest runs that other agents do for this one."""
    return list(selectors.children_of(run.id).order_by("-id")[:CHILDREN_SHOWN_MAX])


def _temporal_url(run_id: UUID) -> str:
    """The run in Temporal's own pages, if this installation says where they are."""
    base = settings.TEMPORAL_UI_URL.rstrip("/")
    if not base.startswith(("http://", "https://")):
        return ""
    return f"{base}/namespaces/{settings.TEMPORAL_NAMESPACE}/workflows/{workflow_id(run_id)}"


def _event_store_url(request: HttpRequest, run: Run) -> str:
    """The run as the event store has it, if that is ours: a link, for its word is never taken for the run's state."""
    if "temporality" not in settings.DATABASES or not request.user.has_perm("temporality.view_item"):
        return ""
    named = urlencode({"project": run.project_id, "run": run.id})
    return f"{reverse('admin:temporality_item_run')}?{named}"


def _place(text: str) -> tuple[int, int] | None:
    turn, _, position = text.partition(".")
    first, second = _number(turn), _number(position)
    return (first, second) if first is not None and second is not None else None


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= NUMBER_DIGITS_MAX else None

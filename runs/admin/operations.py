"""Operations in the console: the queue of uncertain ones, the page of one, a person's verdict. Never repeats a call."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import UUID

from django.contrib import admin
from django.contrib.auth.models import User
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.decorators import method_decorator
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.views.decorators.http import require_POST, require_safe

from approvals.selectors import requests
from kernel_project.admin import ChoiceFilter, FactAdmin, badge, cell, demand, moment, report, short_id, wide_cell
from kernel_project.primitives.errors import Invalid
from kernel_project.visible_text import hidden_count
from outbox.contracts import Actor
from runs import dashboard_selectors as reads
from runs.admin.runs import READ_BODIES, is_scripted
from runs.boundary import artifacts, compensation, reconcile, second_person
from runs.loop import compensations
from runs.models import Artifact, Operation

RECONCILE = "runs.reconcile_operation"
COMPENSATE = "runs.compensate_operation"
RESULT_CHARS_MAX = 20_000  # of what a person says the effect answered
REQUESTS_MAX = 50  # for decisions on one call that are shown with it
EVIDENCE_CHARS_MAX = 64 * 1024  # of what shows the verdict; the command takes more


class OperationStateFilter(ChoiceFilter):
    title = "state"
    parameter_name = "state"
    column = "state"
    choices_offered = Operation.State.choices
    indexed = frozenset({"uncertain"})
    newest_first = ("-run_id", "-turn", "-position")
    edge_column = "run_id"


@admin.register(Operation)
class OperationAdmin(FactAdmin):
    """Everything that left the process, or was to leave it. Newest runs first; the uncertain ones by age."""

    list_display = ["call", "where", "effect_badge", "place", "run_link", "attempt", "age", "problem"]
    list_filter = [OperationStateFilter]
    exact_ids = ["id", "run_id"]
    search_help_text = "A whole operation or run id"

    def get_ordering(self, request: HttpRequest) -> list[str]:
        queue = request.GET.get("state") == "uncertain"
        return ["settled_at", "id"] if queue else ["-run_id", "-turn", "-position"]

    def get_urls(self) -> list[URLPattern]:
        doors = {"resolve": self.resolve, "probe": self.probe, "compensate": self.compensate}
        ours = [
            path(f"<uuid:operation_id>/{name}/", self.admin_site.admin_view(door), name=f"runs_operation_{name}")
            for name, door in doors.items()
        ]
        return [*ours, *super().get_urls()]

    @admin.display(description="Call")
    def call(self, operation: Operation) -> SafeString:
        return format_html('<span class="k-mono">{}</span>', cell(operation.name))

    @admin.display(description="State")
    def where(self, operation: Operation) -> SafeString:
        verdict = format_html(" {}", badge(operation.verdict)) if operation.verdict else ""
        return format_html("{}{}", badge(operation.state), verdict)

    @admin.display(description="Effect")
    def effect_badge(self, operation: Operation) -> SafeString:
        return badge(operation.effect)

    @admin.display(description="Turn")
    def place(self, operation: Operation) -> str:
        return f"{operation.turn}.{operation.position}"

    @admin.display(description="Run")
    def run_link(self, operation: Operation) -> SafeString:
        return short_id(operation.run_id, reverse("admin:runs_run_change", args=[operation.run_id]))

    @admin.display(description="Settled")
    def age(self, operation: Operation) -> SafeString:
        return moment(operation.settled_at)

    @admin.display(description="Problem")
    def problem(self, operation: Operation) -> SafeString:
        return wide_cell(operation.error_message or operation.error_class)

    @method_decorator(require_safe)
    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """One operation: intent, policy, attempts, outcome, evidence."""
        self.may_look(request)
        operation = _get(object_id)
        context = {
            **self.admin_site.each_context(request),
            **_page(request, operation),
            "opts": self.opts,
            "original": operation,
            "title": "Operation",
        }
        return TemplateResponse(request, "kernel/operation.html", context)

    @method_decorator(require_POST)
    def resolve(self, request: HttpRequest, operation_id: UUID) -> HttpResponse:
        """Write a person's verdict on an uncertain operation."""
        operation = _get(operation_id)
        demand(request, RECONCILE, operation, "settling an uncertain operation")
        self.may_look(request)
        report(request, operation, partial(_resolve, request, operation))
        return HttpResponseRedirect(reverse("admin:runs_operation_change", args=[operation.id]))

    @method_decorator(require_POST)
    def probe(self, request: HttpRequest, operation_id: UUID) -> HttpResponse:
        """Let the other side be asked at once what became of an uncertain operation."""
        return self._ask(request, operation_id, RECONCILE, "looking for an uncertain operation", _probe)

    @method_decorator(require_POST)
    def compensate(self, request: HttpRequest, operation_id: UUID) -> HttpResponse:
        """Undo an effect by the operation that its tool declares for that."""
        return self._ask(request, operation_id, COMPENSATE, "undoing an effect", partial(_compensate, request))

    def _ask(
        self, request: HttpRequest, operation_id: UUID, permission: str, wish: str, act: Callable[[Operation], str]
    ) -> HttpResponse:
        operation = _get(operation_id)
        demand(request, permission, operation, wish)
        self.may_look(request)
        report(request, operation, partial(act, operation))
        return HttpResponseRedirect(reverse("admin:runs_operation_change", args=[operation.id]))


def _probe(operation: Operation) -> str:
    reconcile.probe_soon(operation.id, operation.project_id)
    return f"{operation.name}: the other side is being asked; look again in a few seconds"


def _compensate(request: HttpRequest, operation: Operation) -> str:
    note = request.POST.get("note", "")
    run = compensations.compensate(operation.id, project=operation.project_id, by=_person(request), note=note)
    return f"{operation.name}: run {run.id} undoes it"


def _person(request: HttpRequest) -> Actor:
    assert isinstance(request.user, User)
    return Actor(id=request.user.get_username(), type="human")


def _resolve(request: HttpRequest, operation: Operation) -> str:
    result = request.POST.get("result", "")
    if len(result) > RESULT_CHARS_MAX or "\x00" in result:
        raise Invalid(f"the result must be at most {RESULT_CHARS_MAX} characters, without NUL")
    evidence = request.POST.get("evidence", "")
    if len(evidence) > EVIDENCE_CHARS_MAX:
        raise Invalid(f"the evidence must be at most {EVIDENCE_CHARS_MAX} characters")
    settled = reconcile.resolve(
        operation.id,
        project=operation.project_id,
        verdict=request.POST.get("verdict", ""),
        by=_person(request),
        note=request.POST.get("note", ""),
        result=result,
        evidence=evidence.encode("utf-8", "backslashreplace"),
    )
    return f"{settled.name}: {settled.verdict}, by {settled.reconciled_by}"


def _get(object_id: str | UUID) -> Operation:
    rows = Operation.objects.select_related("run__agent_version__agent", "tool")
    try:
        found = rows.filter(id=UUID(str(object_id))).first()
    except ValueError:
        found = None
    if found is None:
        raise Http404("there is no such operation")
    return found


def _page(request: HttpRequest, operation: Operation) -> dict[str, Any]:
    may_read = request.user.has_perm(READ_BODIES)
    hidden = reads.Body(problem="you may not read bodies")
    arguments = reads.body(operation.run_id, operation.arguments_digest) if may_read else hidden
    uncertain = operation.state == Operation.State.UNCERTAIN
    reconciles = uncertain and request.user.has_perm(RECONCILE)
    barred = second_person.why_not(operation, request.user.get_username()) if reconciles else ""
    undone = compensation.of(operation.id)
    return {
        "operation": operation,
        "run": operation.run,
        "scripted": operation.kind == "model" and is_scripted(operation.run),
        "arguments": arguments,
        "hidden": hidden_count(arguments.text),
        "result": reads.answer(operation.run_id, operation.result_digest) if may_read else hidden,
        "approvals": _requests(operation),
        "evidence": Artifact.objects.filter(run_id=operation.run_id, digest=operation.evidence_digest).first(),
        "lines": reads.events_of(operation),
        "twins": reads.twins_of(operation),
        "uncertain": uncertain,
        "may_resolve": reconciles and not barred,
        "barred": barred,
        "holds": reads.holds_on(operation.project_id, operation.run_id),
        "may_probe": reconciles and operation.probes,
        "compensations": undone,
        "still_stands": bool(undone) and not any(call and compensation.is_done(call) for _, call in undone),
        "may_compensate": request.user.has_perm(COMPENSATE) and _can_be_undone(operation),
        "verdicts": VERDICTS,
    }


def _requests(operation: Operation) -> list[Any]:
    """All requests for a person's decision on this call, the newest first, voided ones too."""
    return list(
        requests(operation.project_id, run_id=operation.run_id).filter(operation_id=operation.id)[:REQUESTS_MAX]
    )


def _can_be_undone(operation: Operation) -> bool:
    declared = operation.tool is not None and operation.tool.compensation is not None
    return declared and not compensation.not_undoable(operation) and compensation.standing(operation.id) is None


VERDICTS = (
    ("occurred", "It happened", "The effect is there. The run goes on as if the call had succeeded."),
    ("none", "It did not happen", "The effect is provably not there. The call may be made again."),
    ("unknown", "It cannot be found out", "Nobody can tell. The agent is told so and must not repeat it blindly."),
)


@admin.register(Artifact)
class ArtifactAdmin(FactAdmin):
    """Bodies: inputs, arguments, results, logs. Shown as text, downloaded as a file, never rendered."""

    list_display = ["address", "kind", "run_link", "size", "media_type", "made"]
    ordering = ["-id"]
    exact_ids = ["run_id"]
    search_help_text = "A whole run id"

    def get_queryset(self, request: HttpRequest) -> Any:
        return super().get_queryset(request).defer("body")

    def get_urls(self) -> list[URLPattern]:
        download = path(
            "<int:artifact_id>/download/", self.admin_site.admin_view(self.download), name="runs_artifact_download"
        )
        return [download, *super().get_urls()]

    @admin.display(description="Artifact")
    def address(self, artifact: Artifact) -> SafeString:
        return format_html('<span class="k-mono">{}…</span>', artifact.digest[:16])

    @admin.display(description="Run")
    def run_link(self, artifact: Artifact) -> SafeString:
        return short_id(artifact.run_id, reverse("admin:runs_run_change", args=[artifact.run_id]))

    @admin.display(description="Made")
    def made(self, artifact: Artifact) -> SafeString:
        return moment(artifact.created_at)

    @method_decorator(require_safe)
    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        self.may_look(request)
        artifact = _artifact(object_id)
        context = {
            **self.admin_site.each_context(request),
            "artifact": artifact,
            "holds": reads.holds_on(artifact.run.project_id, artifact.run_id, artifact.digest),
            "body": reads.body(artifact.run_id, artifact.digest),
            "opts": self.opts,
            "original": artifact,
            "title": "Artifact",
        }
        return TemplateResponse(request, "kernel/artifact.html", context)

    @method_decorator(require_safe)
    def download(self, request: HttpRequest, artifact_id: int) -> HttpResponse:
        """The bytes as a file that no browser opens by itself, whatever they are."""
        self.may_look(request)
        artifact = _artifact(artifact_id)
        data = artifacts.read(artifact.run_id, artifact.digest)
        return HttpResponse(
            data,
            content_type="application/octet-stream",
            headers={"Content-Disposition": f'attachment; filename="{artifact.digest}.bin"'},
        )


def _artifact(object_id: str | int) -> Artifact:
    known = str(object_id)
    found = (
        Artifact.objects.select_related("run").defer("body").filter(id=int(known)).first()
        if known.isdecimal()
        else None
    )
    if found is None:
        raise Http404("there is no such artifact")
    return found

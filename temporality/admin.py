"""The event store as an operator sees it: what came in, what contradicts, what waits and why. Changes nothing.

Where the event store is another installation's, there is no database to look into, and nobody may open these pages.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django.conf import settings
from django.contrib import admin
from django.db.models import F, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path, reverse
from django.utils.decorators import method_decorator
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.views.decorators.http import require_safe

from kernel_project.admin import ChoiceFilter, FactAdmin, badge, cell, moment, wide_cell
from kernel_project.visible_text import shown
from temporality import generations, run_page
from temporality.models import Conflict, Edge, Event, Head, Item, Pending, Progress, Projector, Token
from temporality.projection.folds import STATUSES

ALIAS = "temporality"  # of the database


def _text(text: str) -> SafeString:
    return format_html('<pre class="k-text">{}</pre>', shown(text))


def _inbox(text: str) -> str:
    return f"{reverse('admin:temporality_event_changelist')}?{urlencode({'q': text})}"


def _event_link(event_id: str) -> SafeString:
    return format_html('<a class="k-link" href="{}">{}</a>', _inbox(event_id), cell(event_id))


def _run_link(project: str, run: str) -> SafeString:
    where = f"{reverse('admin:temporality_item_run')}?{urlencode({'project': project, 'run': run})}"
    return format_html('<a class="k-link" href="{}">{}</a>', where, cell(run))


class StoreAdmin(FactAdmin):
    """Rows of the event store's own database, if it is ours."""

    def has_module_permission(self, request: HttpRequest) -> bool:
        return ALIAS in settings.DATABASES and super().has_module_permission(request)

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return ALIAS in settings.DATABASES and super().has_view_permission(request, obj)


class LiveAdmin(StoreAdmin):
    """Rows of the projection that is read now; those of a rebuild are not shown."""

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).filter(generation=generations.live())


@admin.register(Event)
class EventAdmin(StoreAdmin):
    """The inbox, newest first. Look for a whole event id, run, operation id or knowledge id."""

    list_display = ["received", "event_type", "event", "of_project", "of_run", "sequence", "source"]
    ordering = ["-position"]
    exact_texts = ["event_id", "run", "subject_id"]
    search_help_text = "A whole event id, run, operation id or knowledge id"
    fields = [
        "position", "source_id", "event_id", "project", "run", "sequence", "type", "subject_id", "parents",
        "occurred_at", "received_at", "quarantine", "canonical", "as_sent",
    ]  # fmt: skip
    readonly_fields = ["canonical", "as_sent"]

    @admin.display(description="Received")
    def received(self, event: Event) -> SafeString:
        return moment(event.received_at)

    @admin.display(description="Type")
    def event_type(self, event: Event) -> SafeString:
        return cell(event.type)

    @admin.display(description="Event")
    def event(self, event: Event) -> SafeString:
        return cell(event.event_id)

    @admin.display(description="Project")
    def of_project(self, event: Event) -> SafeString:
        return cell(event.project)

    @admin.display(description="Run")
    def of_run(self, event: Event) -> SafeString:
        return _run_link(event.project, event.run) if event.run else cell("")

    @admin.display(description="Source")
    def source(self, event: Event) -> SafeString:
        return cell(event.source_id)

    @admin.display(description="Content")
    def canonical(self, event: Event) -> SafeString:
        return _text(event.content)

    @admin.display(description="As it was sent")
    def as_sent(self, event: Event) -> SafeString:
        return _text(event.raw) if event.raw else cell("exactly as the content above")


@admin.register(Conflict)
class ConflictAdmin(StoreAdmin):
    """Refused second versions. The first version stands; both are shown."""

    list_display = ["first_seen", "what", "event", "of_project", "times_seen", "last_seen"]
    ordering = ["-id"]
    fields = [
        "kind", "source_id", "event_id", "project", "run", "times_seen", "first_seen_at", "last_seen_at", "kept",
        "refused",
    ]  # fmt: skip
    readonly_fields = ["kept", "refused"]

    @admin.display(description="First seen")
    def first_seen(self, conflict: Conflict) -> SafeString:
        return moment(conflict.first_seen_at)

    @admin.display(description="Last seen")
    def last_seen(self, conflict: Conflict) -> SafeString:
        return moment(conflict.last_seen_at)

    @admin.display(description="What")
    def what(self, conflict: Conflict) -> SafeString:
        return badge("failed", Conflict.Kind(conflict.kind).label)

    @admin.display(description="Event")
    def event(self, conflict: Conflict) -> SafeString:
        return _event_link(conflict.event_id)

    @admin.display(description="Project")
    def of_project(self, conflict: Conflict) -> SafeString:
        return cell(conflict.project)

    @admin.display(description="The version that stands")
    def kept(self, conflict: Conflict) -> SafeString:
        first = Event.objects.filter(position=conflict.position).first()
        return _text(first.content) if first else cell("deleted")

    @admin.display(description="The version that was refused")
    def refused(self, conflict: Conflict) -> SafeString:
        return _text(conflict.content)


class PendingStateFilter(ChoiceFilter):
    title = "state"
    parameter_name = "state"
    column = "state"
    choices_offered = Pending.State.choices
    indexed = frozenset(Pending.State.values)


@admin.register(Pending)
class PendingAdmin(LiveAdmin):
    """Quarantine and unresolved dependencies: events that are stored and not applied, oldest first, with the reason."""

    list_display = ["waits_since", "pending_state", "event_type", "event", "of_project", "subject", "why"]
    list_filter = [PendingStateFilter]
    ordering = ["position"]
    fields = ["position", "source_id", "event_id", "type", "project", "run", "kind", "key", "state", "why", "waits_for"]
    readonly_fields = ["why", "waits_for"]

    @admin.display(description="Since")
    def waits_since(self, pending: Pending) -> SafeString:
        return moment(pending.received_at)

    @admin.display(description="State")
    def pending_state(self, pending: Pending) -> SafeString:
        return badge(pending.state)

    @admin.display(description="Type")
    def event_type(self, pending: Pending) -> SafeString:
        return cell(pending.type)

    @admin.display(description="Event")
    def event(self, pending: Pending) -> SafeString:
        return _event_link(pending.event_id)

    @admin.display(description="Project")
    def of_project(self, pending: Pending) -> SafeString:
        return cell(pending.project)

    @admin.display(description="Incomplete without it")
    def subject(self, pending: Pending) -> SafeString:
        return cell(f"{pending.kind} {pending.key}".strip())

    @admin.display(description="Reason")
    def why(self, pending: Pending) -> SafeString:
        return wide_cell(pending.reason)

    @admin.display(description="Edges")
    def waits_for(self, pending: Pending) -> SafeString:
        edges = Edge.objects.filter(generation=pending.generation, position=pending.position)[:100]
        return _text("\n".join(f"{edge.parent_event_id}: {Edge.State(edge.state).label}" for edge in edges))


class EdgeStateFilter(ChoiceFilter):
    title = "state"
    parameter_name = "state"
    column = "state"
    choices_offered = Edge.State.choices


@admin.register(Edge)
class EdgeAdmin(LiveAdmin):
    """Causal edges that are not satisfied: waited for, or unresolvable with the reason."""

    list_display = ["child", "parent", "of_project", "edge_state"]
    list_filter = [EdgeStateFilter]
    ordering = ["-id"]
    exact_texts = ["parent_event_id"]
    fields = ["position", "source_id", "parent_event_id", "project", "state"]

    @admin.display(description="Inbox position")
    def child(self, edge: Edge) -> int:
        return edge.position

    @admin.display(description="Parent")
    def parent(self, edge: Edge) -> SafeString:
        return _event_link(edge.parent_event_id) if edge.parent_event_id else cell("no event id")

    @admin.display(description="Project")
    def of_project(self, edge: Edge) -> SafeString:
        return cell(edge.project)

    @admin.display(description="State")
    def edge_state(self, edge: Edge) -> SafeString:
        return badge(edge.state, Edge.State(edge.state).label)


@admin.register(Progress)
class GapAdmin(LiveAdmin):
    """Runs in which a sequence is missing."""

    list_display = ["of_run", "of_project", "source", "received", "last_received"]
    list_display_links = None
    ordering = ["id"]
    fields = ["project", "source_id", "run", "contiguous", "highest", "count", "unnumbered", "last_received_at"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).filter(contiguous__lt=F("highest"))

    @admin.display(description="Run")
    def of_run(self, progress: Progress) -> SafeString:
        return _run_link(progress.project, progress.run)

    @admin.display(description="Project")
    def of_project(self, progress: Progress) -> SafeString:
        return cell(progress.project)

    @admin.display(description="Source")
    def source(self, progress: Progress) -> SafeString:
        return cell(progress.source_id)

    @admin.display(description="Received without a hole")
    def received(self, progress: Progress) -> SafeString:
        return badge("uncertain", f"{progress.contiguous} of {progress.highest}")

    @admin.display(description="Last event")
    def last_received(self, progress: Progress) -> SafeString:
        return moment(progress.last_received_at)


class ItemKindFilter(ChoiceFilter):
    title = "kind"
    parameter_name = "kind"
    column = "kind"
    choices_offered = Item.Kind.choices


class ItemStatusFilter(ChoiceFilter):
    title = "state"
    parameter_name = "status"
    column = "status"
    choices_offered = [(status, status.replace("_", " ")) for status in STATUSES]


@admin.register(Item)
class ItemAdmin(LiveAdmin):
    """Runs, operations, approvals and knowledge as the event store understands them: not the kernel's own state."""

    list_display = ["kind", "of_key", "of_project", "item_status", "changed"]
    list_filter = [ItemKindFilter, ItemStatusFilter]
    ordering = ["-id"]
    readonly_fields = ["made_of", "held_back", "timeline"]

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        more = ["timeline"] if obj and obj.kind == Item.Kind.RUN else []
        return ["kind", "project", "source_id", "key", "run", "status", "held_back", "made_of", "changed_at", *more]

    def get_urls(self) -> list[URLPattern]:
        return [path("run/", self.admin_site.admin_view(self.run), name="temporality_item_run"), *super().get_urls()]

    @method_decorator(require_safe)
    def run(self, request: HttpRequest) -> HttpResponse:
        """The page of one run, by `project` and `run`; what is in the inbox of it, if nothing else is known yet."""
        self.may_look(request)
        project, run = (request.GET.get(name, "").replace("\0", "") for name in ("project", "run"))
        item = run_page.items_of_run(project, run).first()
        if item:
            return HttpResponseRedirect(reverse("admin:temporality_item_change", args=[item.pk]))
        return HttpResponseRedirect(_inbox(run))

    @admin.display(description="Events in their sequence")
    def timeline(self, item: Item) -> SafeString:
        return run_page.timeline(item)

    @admin.display(description="Held back, so that this may be incomplete")
    def held_back(self, item: Item) -> SafeString:
        return run_page.held_back(item)

    @admin.display(description="Id")
    def of_key(self, item: Item) -> SafeString:
        return cell(item.key)

    @admin.display(description="Project")
    def of_project(self, item: Item) -> SafeString:
        return cell(item.project)

    @admin.display(description="State")
    def item_status(self, item: Item) -> SafeString:
        return badge(item.status)

    @admin.display(description="Changed")
    def changed(self, item: Item) -> SafeString:
        return moment(item.changed_at)

    @admin.display(description="Values, with the events that made them")
    def made_of(self, item: Item) -> SafeString:
        return _text(item.registers)


@admin.register(Projector)
class ProjectorAdmin(StoreAdmin):
    """How far each generation of the projection has read the inbox."""

    list_display = ["generation", "generation_state", "position", "behind", "oldest_unread", "updated"]
    ordering = ["-generation"]
    fields = ["generation", "state", "position", "behind", "oldest_unread", "target", "project", "updated_at"]
    readonly_fields = ["behind", "oldest_unread"]

    @admin.display(description="Events not read")
    def behind(self, projector: Projector) -> SafeString:
        count = max(0, Head.objects.get().position - projector.position)
        return badge("uncertain" if count else "succeeded", str(count))

    @admin.display(description="Oldest of them")
    def oldest_unread(self, projector: Projector) -> SafeString:
        first = Event.objects.filter(position__gt=projector.position).order_by("position").first()
        return moment(first.received_at if first else None)

    @admin.display(description="State")
    def generation_state(self, projector: Projector) -> SafeString:
        return badge(projector.state)

    @admin.display(description="Moved")
    def updated(self, projector: Projector) -> SafeString:
        return moment(projector.updated_at)


@admin.register(Token)
class TokenAdmin(StoreAdmin):
    """Who may write and read. Tokens are made and revoked with `manage.py temporality_token`."""

    list_display = ["name", "role", "all_projects", "projects", "revoked_at"]
    ordering = ["name"]
    fields = ["name", "role", "all_projects", "projects", "sources", "created_at", "revoked_at"]

"""The outbox as an operator sees it: streams, events, what is parked, where it goes. Changes nothing by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any
from uuid import UUID

from django.contrib import admin, messages
from django.contrib.auth.models import User
from django.db.models import F, QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from kernel_project.admin import (
    WINDOW_ROWS,
    ChoiceFilter,
    FactAdmin,
    badge,
    cell,
    demand,
    few_enough,
    moment,
    report,
    short_id,
    wide_cell,
)  # fmt: skip
from kernel_project.visible_text import shown
from outbox import parked as parking
from outbox.contracts import Actor
from outbox.models import Destination, Event, ParkedEvent, PeriodicJob, PublisherHeartbeat, SourceEpoch, Stream

REPLAY, GIVE_UP = "outbox.replay_parkedevent", "outbox.give_up_parkedevent"
Decide = Callable[..., ParkedEvent]


class DeliveryFilter(admin.SimpleListFilter):
    """Streams by how far they are delivered. "Behind" has an index; a gap is looked for among the latest runs."""

    title = "delivery"
    parameter_name = "delivery"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Iterable[tuple[str, str]]:
        return [("behind", "behind"), ("failing", "behind, with an error"), ("gap", "gap over there (latest runs)")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Stream]) -> QuerySet[Stream]:
        behind = queryset.filter(ready_at__isnull=False).order_by("ready_at")
        match self.value():
            case "behind":
                return behind
            case "failing":
                return behind.exclude(last_error="")
            case "gap":
                return self._latest(queryset).filter(seen__lt=F("published"))
        return queryset

    def _latest(self, queryset: QuerySet[Stream]) -> QuerySet[Stream]:
        ids = Stream.objects.order_by("-run_id").values_list("run_id", flat=True)
        edge = list(ids[WINDOW_ROWS : WINDOW_ROWS + 1])
        return queryset.filter(run_id__gte=edge[0]) if edge else queryset


@admin.register(Stream)
class StreamAdmin(FactAdmin):
    """One row per run: what was written, what is acknowledged, and what the event store says it has."""

    list_display = ["run", "project", "written", "acknowledged", "seen_there", "waiting", "error"]
    list_filter = [DeliveryFilter]
    ordering = ["-run_id"]
    exact_ids = ["run_id"]
    search_help_text = "A whole run id"
    fields = [
        "run_id", "project", "head", "published", "seen", "seen_at", "ready_at", "leased_until", "attempts",
        "next_attempt_at", "error", "created_at",
    ]  # fmt: skip
    readonly_fields = ["error"]

    def get_ordering(self, request: HttpRequest) -> list[str]:
        """The queue by age, as its index has it; everything else newest run first."""
        return ["ready_at", "run_id"] if request.GET.get("delivery") in ("behind", "failing") else ["-run_id"]

    @admin.display(description="Run")
    def run(self, stream: Stream) -> SafeString:
        return short_id(stream.run_id)

    @admin.display(description="Written")
    def written(self, stream: Stream) -> int:
        return stream.head

    @admin.display(description="Acknowledged")
    def acknowledged(self, stream: Stream) -> SafeString:
        return _progress(stream.published, stream.head)

    @admin.display(description="Seen over there")
    def seen_there(self, stream: Stream) -> SafeString:
        return cell("not asked yet") if stream.seen is None else _progress(stream.seen, stream.published)

    @admin.display(description="Oldest waits for")
    def waiting(self, stream: Stream) -> SafeString:
        return moment(stream.ready_at)

    @admin.display(description="Last error")
    def error(self, stream: Stream) -> SafeString:
        return wide_cell(stream.last_error)


def _progress(done: int, of: int) -> SafeString:
    return badge("succeeded" if done >= of else "uncertain", f"{done} of {of}")


@admin.register(Event)
class EventAdmin(FactAdmin):
    """The journal, newest runs first. It is cut by run: look for a run's id to see all of one run."""

    list_display = ["occurred", "run", "sequence", "type", "operation"]
    ordering = ["-run_id", "-sequence"]
    exact_ids = ["run_id", "event_id", "operation_id"]
    search_help_text = "A whole run, event or operation id"
    fields = ["event_id", "run_id", "sequence", "type", "occurred_at", "recorded_at", "operation_id", "as_sent"]
    readonly_fields = ["as_sent"]

    @admin.display(description="Occurred")
    def occurred(self, event: Event) -> SafeString:
        return moment(event.occurred_at)

    @admin.display(description="Run")
    def run(self, event: Event) -> SafeString:
        return _search(event.run_id)

    @admin.display(description="Operation")
    def operation(self, event: Event) -> SafeString | str:
        return _search(event.operation_id) if event.operation_id else ""

    @admin.display(description="As it is sent")
    def as_sent(self, event: Event) -> SafeString:
        return format_html('<pre class="k-text">{}</pre>', shown(event.envelope))


def _search(wanted: UUID) -> SafeString:
    return short_id(wanted, f"{reverse('admin:outbox_event_changelist')}?q={wanted}")


class ParkedStateFilter(ChoiceFilter):
    title = "state"
    parameter_name = "state"
    column = "state"
    choices_offered = ParkedEvent.State.choices
    indexed = frozenset({"parked", "queued"})
    newest_first = ("-run_id",)
    edge_column = "run_id"


@admin.register(ParkedEvent)
class ParkedEventAdmin(FactAdmin):
    """Events that the event store refused for good, with the reason. Their streams go on."""

    actions = ["replay", "give_up"]
    list_display = ["event", "run", "sequence", "where", "reason", "error", "parked"]
    list_filter = [ParkedStateFilter]
    ordering = ["-run_id", "-sequence"]
    exact_ids = ["event_id", "run_id"]
    search_help_text = "A whole event or run id"
    fields = [
        "event_id", "run_id", "sequence", "where", "reason", "error", "attempts", "parked_at", "resolved_at",
        "resolved_by", "its_note",
    ]  # fmt: skip
    readonly_fields = ["where", "error", "its_note"]

    def has_replay_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm(REPLAY)

    def has_give_up_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm(GIVE_UP)

    @admin.action(description="Send again…", permissions=["replay"])
    def replay(self, request: HttpRequest, queryset: QuerySet[ParkedEvent]) -> HttpResponse | None:
        """Ask for a note, then have each sent again with the same bytes."""
        demand(request, REPLAY, None, "replaying parked events")
        consequence = "The publisher sends the same bytes again; what is refused again is parked again."
        return self._decide(request, queryset, "replay", parking.replay, "Send again", consequence)

    @admin.action(description="Give up…", permissions=["give_up"])
    def give_up(self, request: HttpRequest, queryset: QuerySet[ParkedEvent]) -> HttpResponse | None:
        """Ask for a note, then give each up by itself."""
        demand(request, GIVE_UP, None, "giving up parked events")
        consequence = "The event store will never have them; the journal keeps them."
        return self._decide(request, queryset, "give_up", parking.give_up, "Give up", consequence)

    def _decide(
        self, request: HttpRequest, queryset: QuerySet[ParkedEvent], action: str, decide: Decide, title: str,
        consequence: str,
    ) -> HttpResponse | None:  # fmt: skip
        chosen = few_enough(request, queryset)
        note = request.POST.get("note", "").strip()
        if chosen and not note:
            if "note" in request.POST:
                messages.error(request, "say why, in the note")
            context = {
                **self.admin_site.each_context(request),
                "events": chosen, "action": action, "title": title, "consequence": consequence, "opts": self.opts,
            }  # fmt: skip
            return TemplateResponse(request, "kernel/parked_many.html", context)
        for event in chosen:
            report(request, event, partial(_decided, request, event, decide, note))
        return None

    @admin.display(description="Event")
    def event(self, parked: ParkedEvent) -> SafeString:
        return short_id(parked.event_id)

    @admin.display(description="Run")
    def run(self, parked: ParkedEvent) -> SafeString:
        return _search(parked.run_id)

    @admin.display(description="State")
    def where(self, parked: ParkedEvent) -> SafeString:
        return badge(parked.state)

    @admin.display(description="What the event store said")
    def error(self, parked: ParkedEvent) -> SafeString:
        return wide_cell(parked.last_error)

    @admin.display(description="Parked")
    def parked(self, parked: ParkedEvent) -> SafeString:
        return moment(parked.parked_at)

    @admin.display(description="Note")
    def its_note(self, parked: ParkedEvent) -> SafeString:
        return shown(parked.note)


def _decided(request: HttpRequest, event: ParkedEvent, decide: Decide, note: str) -> str:
    assert isinstance(request.user, User)
    moved = decide(event.event_id, by=Actor(id=request.user.get_username(), type="human"), note=note)
    return f"{moved}: {moved.get_state_display()}"


@admin.register(Destination)
class DestinationAdmin(FactAdmin):
    """The circuit of each event store."""

    list_display = ["name", "circuit", "failures", "success", "error"]
    ordering = ["name"]
    fields = ["name", "circuit", "failures", "open_until", "last_success_at", "error", "worker_until", "turned_away"]
    readonly_fields = ["circuit", "error"]

    @admin.display(description="Circuit")
    def circuit(self, destination: Destination) -> SafeString:
        return badge("failed", "open") if destination.failures else badge("succeeded", "closed")

    @admin.display(description="Last success")
    def success(self, destination: Destination) -> SafeString:
        return moment(destination.last_success_at)

    @admin.display(description="Last error")
    def error(self, destination: Destination) -> SafeString:
        return wide_cell(destination.last_error)


@admin.register(PublisherHeartbeat)
class PublisherHeartbeatAdmin(FactAdmin):
    """Who publishes, and since when nobody does."""

    list_display = ["publisher", "beat", "published_total", "fenced_total"]
    ordering = ["-beat_at"]

    @admin.display(description="Last beat")
    def beat(self, heartbeat: PublisherHeartbeat) -> SafeString:
        return moment(heartbeat.beat_at)


@admin.register(SourceEpoch)
class SourceEpochAdmin(FactAdmin):
    """When events began to be told under another source, after a restore from a backup."""

    list_display = ["name", "raised", "raised_by", "why"]
    ordering = ["-name"]
    fields = ["name", "raised_at", "raised_by", "why"]
    readonly_fields = ["why"]

    @admin.display(description="Raised")
    def raised(self, epoch: SourceEpoch) -> SafeString:
        return moment(epoch.raised_at)

    @admin.display(description="Note")
    def why(self, epoch: SourceEpoch) -> SafeString:
        return wide_cell(epoch.note)


@admin.register(PeriodicJob)
class PeriodicJobAdmin(FactAdmin):
    """The jobs that beat ticks, the longest silent first."""

    list_display = ["name", "success", "interval_seconds"]
    ordering = ["last_success_at"]

    @admin.display(description="Last success")
    def success(self, job: PeriodicJob) -> SafeString:
        return moment(job.last_success_at)

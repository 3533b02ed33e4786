"""A run as the event store has it, for the console: its events in their sequence, and what became of each."""

from __future__ import annotations

from collections.abc import Iterable

from django.db.models import QuerySet
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from kernel_project.admin import badge, cell, moment, wide_cell
from temporality.generations import live
from temporality.models import Event, Item, Pending, Projector

NUMBERED_MAX = 500  # events of one page, from the run's beginning; the inbox has the rest
UNNUMBERED_MAX = 100
SOURCES_LOOKED_AT = 1_000  # events of a run among which its sources are found


def items_of_run(project: str, run: str) -> QuerySet[Item]:
    """The run at each source that reports it, in the projection that is read now."""
    events = Event.objects.filter(run=run, project=project).order_by("occurred_at")
    sources = set(events.values_list("source_id", flat=True)[:SOURCES_LOOKED_AT])
    return Item.objects.filter(
        generation__in=live(), project=project, kind=Item.Kind.RUN, source_id__in=sources, key=run
    ).order_by("source_id")


def timeline(item: Item) -> SafeString:
    """A table of the run's events; says so when there are more."""
    events = Event.objects.filter(source_id=item.source_id, run=item.key, project=item.project)
    numbered = list(events.filter(sequence__isnull=False).order_by("sequence")[: NUMBERED_MAX + 1])
    others = list(events.filter(sequence__isnull=True).order_by("occurred_at", "event_id")[:UNNUMBERED_MAX])
    shown = numbered[:NUMBERED_MAX] + others
    states = _states(item.generation, shown)
    rows = format_html_join("", ROW, ((*_cells(event), badge(states[event.position])) for event in shown))
    more = format_html("<p>The first {} events; the inbox has them all.</p>", NUMBERED_MAX)
    return format_html(
        '<table class="k-table">{}{}</table>{}', HEAD, rows, more if len(numbered) > NUMBERED_MAX else ""
    )


COLUMNS = ("Sequence", "Type", "Event", "Happened", "Received", "State")
HEAD = format_html("<tr>{}</tr>", format_html_join("", "<th>{}</th>", ((name,) for name in COLUMNS)))
ROW = "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>"


def _cells(event: Event) -> tuple[SafeString, ...]:
    link = reverse("admin:temporality_event_change", args=[event.position])
    named = format_html('<a class="k-link" href="{}">{}</a>', link, cell(event.event_id))
    number = cell(event.sequence if event.sequence is not None else "none")
    return number, cell(event.type), named, moment(event.occurred_at), moment(event.received_at)


def _states(generation: int, events: Iterable[Event]) -> dict[int, str]:
    positions = [event.position for event in events]
    read = Projector.objects.filter(generation=generation).values_list("position", flat=True).first() or 0
    held = Pending.objects.filter(generation=generation, position__in=positions)
    states = {position: "applied" if position <= read else "unread" for position in positions}
    return states | dict(held.values_list("position", "state"))


def held_back(item: Item) -> SafeString:
    """What is missing from this item, and why."""
    kind = Item.Kind.OPERATION if item.kind == Item.Kind.APPROVAL else item.kind
    held = Pending.objects.filter(generation=item.generation, project=item.project, kind=kind, key=item.key)
    texts = [
        (pending.event_id, pending.state, pending.reason) for pending in held.order_by("position")[:UNNUMBERED_MAX]
    ]
    if not texts:
        return cell("nothing")
    return format_html_join("", "<p>{} {} {}</p>", ((cell(e), badge(state), wide_cell(why)) for e, state, why in texts))

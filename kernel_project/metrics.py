"""Numbers for Prometheus, computed from the tables: the same from every process, and no project is named.

Each number costs a bounded look; what is counted up to a limit says so in its help text.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from time import monotonic

from django.db import DatabaseError
from django.db.models import Model, Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed
from django.http.response import HttpResponseBase

from approvals.models import Approval, Delivery
from kernel_project.primitives.clock import now
from outbox import jobs, partitions
from outbox import selectors as outbox
from runs.models import Operation, Run

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
COUNT_MAX = 10_000  # rows that one number counts; there the number stays
CACHE_SECONDS = 2.0  # many scrapers, or a hostile one, cost no more than one
READS = ("GET", "HEAD")


@dataclass(frozen=True)
class Gauge:
    """One number, or several that differ in a label."""

    name: str
    help: str
    samples: Sequence[tuple[str, float | None]]  # (label set as text, value); None: there is nothing to measure

    def lines(self) -> Iterable[str]:
        name = f"agent_kernel_{self.name}"
        yield f"# HELP {name} {self.help}"
        yield f"# TYPE {name} gauge"
        for labels, value in self.samples:
            if value is not None:
                yield f"{name}{labels} {value:g}" if isinstance(value, float) else f"{name}{labels} {value}"


class _Cache:
    """The last text, for a moment."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._text = ""
        self._until = 0.0

    def text(self) -> str:
        with self._lock:
            if monotonic() >= self._until:
                self._text = exposition()
                self._until = monotonic() + CACHE_SECONDS
            return self._text

    def forget(self) -> None:
        self._until = 0.0


cache = _Cache()


def metrics(request: HttpRequest) -> HttpResponseBase:
    """The door for Prometheus."""
    if request.method not in READS:
        return HttpResponseNotAllowed(READS)
    try:
        return HttpResponse(cache.text(), content_type=CONTENT_TYPE, headers={"Cache-Control": "no-store"})
    except DatabaseError:
        return HttpResponse("the database does not answer\n", status=503, content_type="text/plain; charset=utf-8")


def exposition() -> str:
    """All numbers in the text format of Prometheus."""
    gauges = [*_runs(), *_operations(), *_approvals(), *_messages(), *_outbox()]
    return "\n".join(line for gauge in gauges for line in gauge.lines()) + "\n"


def _count(rows: QuerySet[Model]) -> int:
    return rows.order_by()[:COUNT_MAX].count()


def _runs() -> Iterable[Gauge]:
    live = [(f'{{state="{state}"}}', _count(Run.objects.filter(state=state))) for state in Run.LIVE]
    yield Gauge("runs", f"Runs that have not ended, by state (at most {COUNT_MAX} each).", live)
    oldest = Run.objects.filter(state=Run.State.STARTING).order_by("created_at").first()
    age = (now() - oldest.created_at).total_seconds() if oldest else None
    yield Gauge("oldest_start_seconds", "Age of the oldest start that Temporal has not acknowledged.", [("", age)])


def _operations() -> Iterable[Gauge]:
    uncertain = Operation.objects.filter(state=Operation.State.UNCERTAIN)
    yield Gauge("operations_uncertain", f"Unclear outcomes (at most {COUNT_MAX}).", [("", _count(uncertain))])
    attention = _count(uncertain.filter(needs_attention=True))
    yield Gauge("operations_needing_attention", "Unclear outcomes that only a person can end.", [("", attention)])
    oldest = uncertain.order_by("settled_at").values_list("settled_at", flat=True).first()
    age = (now() - oldest).total_seconds() if oldest else None
    yield Gauge("oldest_uncertain_seconds", "Age of the oldest unclear outcome.", [("", age)])


def _approvals() -> Iterable[Gauge]:
    waiting = Approval.objects.filter(state=Approval.State.WAITING)
    yield Gauge("approvals_waiting", f"Requests that wait for a person (at most {COUNT_MAX}).", [("", _count(waiting))])
    overdue = _count(waiting.filter(Q(deadline_at__lte=now())))
    yield Gauge("approvals_overdue", "Of those, past their deadline and not yet expired.", [("", overdue)])


def _messages() -> Iterable[Gauge]:
    due = Delivery.objects.filter(next_attempt_at__lte=now())
    yield Gauge(
        "messages_due", f"E-mails and webhooks that should have been sent (at most {COUNT_MAX}).", [("", _count(due))]
    )
    oldest = due.order_by("next_attempt_at").values_list("next_attempt_at", flat=True).first()
    age = (now() - oldest).total_seconds() if oldest else 0.0
    yield Gauge("oldest_message_due_seconds", "For how long the oldest of them has been due.", [("", age)])


def _outbox() -> Iterable[Gauge]:
    lag = outbox.lag()
    minimum = f"a minimum from {outbox.STREAMS_BEHIND_MAX} runs behind on"
    told = {
        "outbox_pending_events": ("Events written and not delivered; " + minimum + ".", lag.pending),
        "outbox_runs_behind": ("Runs with undelivered events.", lag.streams_behind),
        "outbox_lag_seconds": ("Age of the oldest undelivered event.", lag.oldest_age_seconds or 0.0),
        "outbox_runs_unowned": (
            f"Of those, waiting over {outbox.UNOWNED_SECONDS:.0f} s with nobody at work.",
            lag.streams_unowned,
        ),
        "outbox_parked_events": ("Events refused for good, waiting for a person.", lag.parked),
        "outbox_unaccounted_events": ("Difference between streams and journal; must be 0.", lag.unaccounted),
        "outbox_publisher_age_seconds": ("Since a publisher was last alive.", lag.publisher_age_seconds),
        "outbox_destination_failures": ("Failures in a row of the event store.", lag.destination_failures),
        "outbox_circuit_open_seconds": ("Until the event store is tried again.", lag.circuit_open_seconds or 0.0),
    }
    for name, (text, value) in told.items():
        yield Gauge(name, text, [("", value)])
    yield from _delivery()


def _delivery() -> Iterable[Gauge]:
    recent = outbox.recent_delivery()
    among = f" (of the latest {outbox.RECENT_STREAMS_MAX} runs)"
    told = {
        "outbox_written_recent_events": ("Events written" + among, recent.written),
        "outbox_acknowledged_recent_events": ("Events acknowledged" + among, recent.acknowledged),
        "outbox_seen_recent_events": ("Events that the event store says it has" + among, recent.seen),
        "outbox_runs_with_gap": ("Runs of which the event store misses something" + among, recent.streams_with_gap),
        "outbox_runs_rewound": ("Runs of which the event store has more than we" + among, recent.streams_rewound),
        "outbox_months_ahead": (
            "Months for which the journal has partitions.",
            partitions.months_ahead(partitions.database_now()),
        ),
    }
    for name, (text, value) in told.items():
        yield Gauge(name, text, [("", value)])
    ages = [(f'{{job="{job.name}"}}', job.age_seconds) for job in jobs.all_jobs()]
    yield Gauge("job_age_seconds", "Since each periodic job last succeeded.", ages)
    overdue = sum(job.overdue for job in jobs.all_jobs())
    yield Gauge("jobs_overdue", "Periodic jobs that are overdue.", [("", overdue)])
    snapshot = outbox.oldest_snapshot()
    age = snapshot.age_seconds if snapshot else 0.0
    yield Gauge("oldest_snapshot_seconds", "Age of a transaction that slows the hot tables down; 0: none.", [("", age)])

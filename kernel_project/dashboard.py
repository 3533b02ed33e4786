"""The home page's cards. Each is read for itself and within its own time: one that fails says so and stands alone."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import urlencode

from django.conf import settings
from django.contrib.auth.models import AnonymousUser, User
from django.db import Error, connections, transaction
from django.http import HttpRequest
from django.urls import reverse

from kernel_project import lag_chart, services_health
from kernel_project.lag_chart import Chart
from kernel_project.primitives.clock import now
from kernel_project.templatetags.kernel import duration, grouped
from outbox import jobs, lag_history
from outbox import selectors as outbox
from runs import dashboard_selectors as reads
from runs.boundary import sandbox_upkeep
from runs.dashboard_selectors import Queue
from runs.models import Run, SandboxReport
from temporality import troubles as store

logger = logging.getLogger(__name__)

CARD_TIMEOUT_MILLISECONDS = 2_000  # a card that takes longer fails alone; the page is drawn without it
REFRESH_SECONDS = 3
LATE_SECONDS = 10.0  # lag beyond it is amber
VERY_LATE_SECONDS = 60.0  # and beyond this red
BADGE_MAX = 99


@dataclass(frozen=True)
class Number:
    """One figure that leads to the rows behind it."""

    title: str
    value: str
    link: str
    tone: str = "idle"
    note: str = ""


@dataclass(frozen=True)
class Card:
    """A part of the home page. `error` stands instead of all else when it could not be read."""

    name: str
    title: str
    link: str
    numbers: Sequence[Number] = ()
    rows: Sequence[Any] = ()
    notice: str = ""
    notice_tone: str = "idle"
    total: str = ""
    error: str = ""
    empty: str = ""
    chart: Chart | None = None


Reader = Callable[[], Card]
T = TypeVar("T")


@dataclass(frozen=True)
class Spec:
    """What a card needs: a right to be shown at all, and how it is read."""

    name: str
    title: str
    permission: str
    read: Reader
    database: str = "default"
    link: Callable[[], str] = field(default=lambda: reverse("admin:index"))


def cards(user: User | AnonymousUser) -> dict[str, Card]:
    """The cards that this person may see."""
    here = [spec for spec in CARDS if spec.database in settings.DATABASES]  # the event store may be another's
    return {spec.name: _read(spec) for spec in here if user.has_perm(spec.permission)}


def frame() -> dict[str, Any]:
    """What the page needs around its cards."""
    return {"refreshed_at": now(), "refresh_seconds": REFRESH_SECONDS}


def waiting_badge(request: HttpRequest) -> str:
    return _badge(request, "approvals.view_approval", reads.waiting_count)


def uncertain_badge(request: HttpRequest) -> str:
    return _badge(request, "runs.view_operation", reads.uncertain_count)


def _badge(request: HttpRequest, permission: str, count: Callable[[], int]) -> str:
    """A number beside a menu item; a database in trouble must not take the menu with it."""
    if not request.user.has_perm(permission):
        return ""
    try:
        number = _in_time(count)
    except Error:
        return "?"
    return "" if number == 0 else str(number) if number <= BADGE_MAX else f"{BADGE_MAX}+"


def _read(spec: Spec) -> Card:
    try:
        return _in_time(spec.read, spec.database)
    except Error as error:
        logger.warning("the home page's card %s could not be read: %s", spec.name, type(error).__name__)
        sentence = "The database did not answer this card in time. It will be asked again."
        return Card(spec.name, spec.title, spec.link(), error=sentence)


def _in_time(read: Callable[[], T], database: str = "default") -> T:
    with transaction.atomic(using=database):
        with connections[database].cursor() as cursor:
            cursor.execute("SELECT set_config('statement_timeout', %s, true)", [str(CARD_TIMEOUT_MILLISECONDS)])
        return read()


def _list(model: str, **query: str) -> str:
    return reverse(f"admin:{model}_changelist") + (f"?{urlencode(query)}" if query else "")


def _at_least(number: int, is_minimum: bool) -> str:
    return f"{grouped(number)}+" if is_minimum else grouped(number)


def _lag() -> Card:
    lag = outbox.lag()
    behind = _list("outbox_stream", delivery="behind")
    numbers = [
        Number("pending events", _at_least(lag.pending, lag.is_minimum), behind, _late(lag.oldest_age_seconds)),
        Number("oldest waits for", duration(lag.oldest_age_seconds), behind, _late(lag.oldest_age_seconds)),
        Number(
            "parked",
            _at_least(lag.parked, lag.parked >= outbox.PARKED_MAX),
            _list("outbox_parkedevent", state="parked"),
            "bad" if lag.parked else "good",
        ),
        Number("unaccounted", grouped(lag.unaccounted), behind, "bad" if lag.unaccounted else "good"),
        Number(
            "publisher heard of",
            "never" if lag.publisher_age_seconds is None else f"{duration(lag.publisher_age_seconds)} ago",
            _list("outbox_publisherheartbeat"),
            "bad" if lag.publisher_late else "good",
        ),
    ]
    notice, notice_tone = _lag_notice(lag)
    chart = lag_chart.draw(lag_history.last_hour())
    return Card("lag", "Outbox", _list("outbox_stream"), numbers, notice=notice, notice_tone=notice_tone, chart=chart)


def _lag_notice(lag: outbox.Lag) -> tuple[str, str]:
    if lag.unaccounted:
        return "The journal and its cursors disagree. Run manage.py verify before anything else.", "bad"
    if lag.destination_failures:
        wait = f", next try in {duration(lag.circuit_open_seconds)}" if lag.circuit_open_seconds else ""
        return f"The event store does not take events{wait}. Nothing is lost; the lag grows until it answers.", "bad"
    if lag.publisher_late:
        return "Nothing publishes: look at Celery's worker and beat.", "bad"
    if lag.parked:
        rest = "All else is on its way." if lag.pending else "All else has been acknowledged."
        waits = f"{_events(lag.parked)} refused by the event store and {_waits(lag.parked)} for a person."
        return f"{waits} {rest}", "bad"
    if lag.pending:
        return "On its way.", "live"
    if lag.given_up:
        sentence = f"{_events(lag.given_up)} given up by a person. All else that was written has been acknowledged."
        return sentence, "good"
    return "Everything that was written has been acknowledged.", "good"


def _events(count: int) -> str:
    return "1 event was" if count == 1 else f"{_at_least(count, count >= outbox.PARKED_MAX)} events were"


def _waits(count: int) -> str:
    return "waits" if count == 1 else "wait"


def _late(age: float | None) -> str:
    if age is None:
        return "good"
    return "bad" if age > VERY_LATE_SECONDS else "warn" if age > LATE_SECONDS else "live"


def _delivery() -> Card:
    found = outbox.recent_delivery()
    streams = _list("outbox_stream")
    missing = found.acknowledged_of_asked - found.seen
    numbers = [
        Number("written", grouped(found.written), streams),
        Number("acknowledged", grouped(found.acknowledged), _list("outbox_stream", delivery="behind")),
        Number(
            "seen over there",
            grouped(found.seen) if found.streams_asked else "–",
            streams,
            note=f"asked for {grouped(found.streams_asked)} of {grouped(found.streams)} runs",
        ),
        Number(
            "runs with a gap",
            grouped(found.streams_with_gap) if found.streams_asked else "–",
            _list("outbox_stream", delivery="gap"),
            "warn" if missing > 0 else "idle",
        ),
    ]
    total = f"latest {grouped(found.streams)} runs"
    empty = "" if found.streams else "No run has told anything yet."
    return Card("delivery", "Event store", streams, numbers, total=total, empty=empty)


def _uncertain() -> Card:
    queue = reads.uncertain()
    link = _list("runs_operation", state="uncertain")
    return Card(
        "uncertain", "Uncertain operations", link, rows=queue.rows, total=_total(queue),
        notice_tone="warn" if queue.total else "good", empty="Nothing is unclear.",
    )  # fmt: skip


def _approvals() -> Card:
    queue = reads.waiting_approvals()
    link = _list("approvals_approval", state="waiting")
    return Card(
        "approvals", "Approvals", link, rows=queue.rows, total=_total(queue),
        notice_tone="ask" if queue.total else "good", empty="Nobody is asked for anything.",
    )  # fmt: skip


def _total(queue: Queue) -> str:
    return _at_least(queue.total, queue.is_minimum)


def _runs() -> Card:
    counts = reads.run_counts()
    tones = {"completed": "good", "failed": "bad", "cancelled": "idle"}
    live = [
        Number(state, grouped(counts.live.get(state, 0)), _list("runs_run", state=state), "live" if counts.live else "")
        for state in Run.LIVE
    ]
    ended = [
        Number(
            state,
            grouped(counts.ended.get(state, 0)),
            _list("runs_run", state=state),
            tones[state] if counts.ended.get(state) else "idle",
        )
        for state in Run.ENDED
    ]
    total = f"live now · ended among the latest {grouped(counts.recent)}"
    empty = "" if counts.recent else "No run yet. Start one by the API, or with manage.py demo."
    return Card("runs", "Runs", _list("runs_run"), [*live, *ended], total=total, empty=empty)


def _waiting() -> Card:
    rows = reads.waiting_runs()
    link = _list("runs_run", state="running")
    return Card("waiting", "Runs that wait", link, rows=rows, empty="Every live run moves.")


def _failing() -> Card:
    link = _list("runs_run", state="failed")
    return Card("failing", "Failing runs", link, rows=reads.failing_runs(), empty="No recent run failed.")


def _sandbox() -> Card:
    machines = sandbox_upkeep.living_reports()
    wanting = [one for one in machines if one.unavailable]
    link = _list("runs_sandboxreport")
    numbers = [
        Number("machines run commands", grouped(len(machines) - len(wanting)), link, "good" if machines else "idle"),
        Number("machines cannot", grouped(len(wanting)), link, "bad" if wanting else "idle"),
        Number("sandboxes live", grouped(sandbox_upkeep.living_count()), link, "live"),
    ]
    notice, tone = _sandbox_notice(machines, wanting)
    empty = "" if machines else "No worker has said lately what its machine can do."
    return Card("sandbox", "Sandbox", link, numbers, notice=notice, notice_tone=tone, empty=empty)


def _sandbox_notice(machines: Sequence[SandboxReport], wanting: Sequence[SandboxReport]) -> tuple[str, str]:
    """The worst that there is to say."""
    if wanting:
        return f"{wanting[0].place} runs no command: {wanting[0].unavailable}", "bad"
    if problems := [f"{one.place}: {one.problems[0]}" for one in machines if one.problems]:
        return problems[0], "warn"
    return "; ".join(sorted({one.sentence for one in machines})), "good"


def _health() -> Card:
    """Every service with a word. Those outside the database are asked beside the page, and never hold it up."""
    lag, late = outbox.lag(), [job for job in jobs.all_jobs() if job.overdue]
    publisher = _list("outbox_publisherheartbeat")
    words = {"PostgreSQL": "ok", **services_health.outside.words()}
    words["Publisher"] = "publishes nothing" if lag.publisher_late else "ok"
    words["Event store"] = f"{lag.destination_failures} failures in a row" if lag.destination_failures else "ok"
    words["Periodic jobs"] = f"{len(late)} overdue" if late else "ok"
    machines = len(sandbox_upkeep.living_reports())
    words["Workers"] = "none has reported"
    links = {"Publisher": publisher, "Event store": _list("outbox_destination"), "Workers": _list("runs_sandboxreport"),
             "Periodic jobs": _list("outbox_periodicjob")}  # fmt: skip
    if machines:
        words["Workers"] = f"ok (on {machines} machine{'s' if machines > 1 else ''})"
    numbers = [_service(name, word, links.get(name, reverse("readyz"))) for name, word in words.items()]
    return Card("health", "Services", reverse("readyz"), numbers)


def _service(name: str, word: str, link: str) -> Number:
    """A service with its word; what stands in brackets behind it is a note."""
    said, _, more = word.partition(" (")
    return Number(name, said, link, {"ok": "good", "is being asked": "idle"}.get(said, "bad"), more.rstrip(")"))


def _store() -> Card:
    """What the event store, if it is ours, could not take as it came. Zero is what one wants to see."""
    found = store.troubles()
    gaps = _list("temporality_progress")
    numbers = [
        _trouble("conflicts", found.conflicts, _list("temporality_conflict"), "bad"),
        _trouble("quarantined", found.quarantined, _list("temporality_pending", state="quarantined"), "bad"),
        _trouble("wait for a parent", found.waiting, _list("temporality_pending", state="waiting"), "warn"),
        _trouble("runs with a gap", found.gaps, gaps, "warn"),
    ]
    return Card("store", "Taken in by the event store", _list("temporality_event"), numbers)


def _trouble(title: str, count: int, link: str, tone: str) -> Number:
    return Number(title, _at_least(count, count >= store.COUNTED_MAX), link, tone if count else "good")


CARDS = (
    Spec("health", "Services", "outbox.view_stream", _health),
    Spec("lag", "Outbox", "outbox.view_stream", _lag),
    Spec("approvals", "Approvals", "approvals.view_approval", _approvals),
    Spec("uncertain", "Uncertain operations", "runs.view_operation", _uncertain),
    Spec("runs", "Runs", "runs.view_run", _runs),
    Spec("waiting", "Runs that wait", "runs.view_run", _waiting),
    Spec("failing", "Failing runs", "runs.view_run", _failing),
    Spec("delivery", "Event store", "outbox.view_stream", _delivery),
    Spec("store", "Taken in by the event store", "temporality.view_event", _store, "temporality"),
    Spec("sandbox", "Sandbox", "runs.view_operation", _sandbox),
)

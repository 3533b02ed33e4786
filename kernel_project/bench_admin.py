"""What the console's pages cost over millions of rows. Fills a database by COPY, and never one that is in use."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from hashlib import md5
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from django.conf import settings
from django.contrib.auth.models import User
from django.core.management.base import CommandError
from django.db import connection
from django.db.models import Model
from django.db.models.expressions import DatabaseDefault
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from approvals.models import Approval
from kernel_project.admin import ROWS_LISTED_MAX, ROWS_PER_PAGE
from kernel_project.bench import Figure
from kernel_project.primitives.clock import now
from outbox import partitions
from outbox.models import Event, ParkedEvent, Stream
from runs.models import Agent, AgentVersion, Operation, Project, Run

ROWS = 10_000_000  # operations, and as many events
PER_RUN = 10  # operations of a run, and events
LONG_RUN_EVENTS = 50_000
LONG_RUN_OPERATIONS = 20_000
FAILED_EACH, LIVE_EACH, UNCERTAIN_EACH, ASKED_EACH = 50, 1_000, 1_000, 20  # one of so many runs
ROWS_OF_A_COPY = 100_000  # lines sent at once
ROUNDS = 7  # of each page, after one that warms the caches
PAGE_MS_MAX = 300.0
LONG_RUN_MS_MAX = 500.0
QUERIES_MAX = 60.0  # of one page, whatever it shows
PAGE_KIB_MAX = 512.0
SLUG = "bench"


@dataclass(frozen=True)
class Page:
    """One page that an operator opens."""

    name: str
    address: str
    query: Mapping[str, str] = field(default_factory=dict)
    at_most_ms: float = PAGE_MS_MAX

    @property
    def url(self) -> str:
        return f"{self.address}?{urlencode(self.query)}" if self.query else self.address


@dataclass(frozen=True)
class Cost:
    milliseconds: Sequence[float]
    queries: int
    kib: float


def admin(rows: int = ROWS) -> list[Figure]:
    """Home, lists, searches, filters, last pages, and one run of 50 000 events, over `rows` operations and events."""
    if Run.objects.exists():
        raise CommandError("bench admin fills its database: it runs on an empty one, not on an installation's")
    settings.ALLOWED_HOSTS = [*settings.ALLOWED_HOSTS, "testserver"]
    began = time.perf_counter()
    long_run = fill(rows)
    filled = time.perf_counter() - began
    client = Client()
    client.force_login(User.objects.create_superuser("bench"))
    costs = [(page, _open(client, page)) for page in pages(long_run)]
    return [
        *_figures(costs, rows),
        Figure("rows_copied_per_s", 2 * rows / filled, "rows/s", about=f"in {filled:.0f} s"),
    ]


def _figures(costs: Sequence[tuple[Page, Cost]], rows: int) -> Iterator[Figure]:
    about = f"{rows} operations and events"
    for page, cost in costs:
        beside = {"slowest_ms": max(cost.milliseconds), "queries": float(cost.queries), "kib": cost.kib}
        median = statistics.median(cost.milliseconds)
        yield Figure(page.name, median, "ms", at_most=page.at_most_ms, beside=beside, about=about)
    yield Figure("queries_of_a_page", float(max(cost.queries for _, cost in costs)), "", at_most=QUERIES_MAX)
    yield Figure("size_of_a_page", max(cost.kib for _, cost in costs), "KiB", at_most=PAGE_KIB_MAX)


def _open(client: Client, page: Page) -> Cost:
    with CaptureQueriesContext(connection) as asked:
        answer = client.get(page.url)
    if answer.status_code != 200:
        raise CommandError(f"{page.url} answered {answer.status_code}")
    queries = len(asked)  # before the next request empties their log
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        client.get(page.url)
        times.append((time.perf_counter() - began) * 1000)
    return Cost(times, queries, len(answer.content) / 1024)


def pages(long_run: UUID) -> Iterator[Page]:
    """Home, each big list with its search and its filters, and the pages of single things."""
    yield Page("home", reverse("admin:index"))
    yield Page("home_live", reverse("admin:live"))
    for model in (Run, Operation, Stream, Event, Approval):
        yield from _list_pages(model)
    run = reverse("admin:runs_run_change", args=[long_run])
    yield Page("run_of_50000_events", run, at_most_ms=LONG_RUN_MS_MAX)
    yield Page("run_of_50000_events_middle", run, {"after": str(LONG_RUN_EVENTS // 2)}, LONG_RUN_MS_MAX)
    yield Page("run_of_50000_events_early", run, {"before": f"{LONG_RUN_OPERATIONS // 2}.0"}, LONG_RUN_MS_MAX)
    operation = Operation.objects.filter(state=Operation.State.UNCERTAIN).values_list("id", flat=True)[0]
    yield Page("operation", reverse("admin:runs_operation_change", args=[operation]))


def _list_pages(model: type[Model]) -> Iterator[Page]:
    name = f"{model._meta.app_label}_{model._meta.model_name}"
    address = reverse(f"admin:{name}_changelist")
    listed = model._default_manager.all()[:ROWS_LISTED_MAX].count()
    yield Page(f"{name}", address)
    yield Page(f"{name}_last", address, {"p": str(-(-listed // ROWS_PER_PAGE))})
    known = model._default_manager.values_list("run_id" if model is not Run else "id", flat=True)[0]
    yield Page(f"{name}_search", address, {"q": str(known)})
    yield Page(f"{name}_search_text", address, {"q": "refund"})
    values = FILTERS[name]
    for parameter, value in values:
        yield Page(f"{name}_{value}", address, {parameter: value})


FILTERS: dict[str, tuple[tuple[str, str], ...]] = {
    "runs_run": (("state", "running"), ("state", "failed"), ("state", "cancelled")),
    "runs_operation": (("state", "uncertain"), ("state", "failed"), ("state", "succeeded")),
    "outbox_stream": (("delivery", "behind"), ("delivery", "failing"), ("delivery", "gap")),
    "outbox_event": (),
    "approvals_approval": (("state", "waiting"), ("state", "granted")),
}


# The rows ----------------------------------------------------------------------------------------------------------


def fill(rows: int) -> UUID:
    """Runs with their operations, events, streams and requests; the newest is the long one, whose id is returned."""
    version = _version()
    count = max(1, rows // PER_RUN)
    newest = now()
    first = partitions.floor(newest - timedelta(milliseconds=count + 1)).int
    ids = [first + (number << partitions.TIMESTAMP_SHIFT) for number in range(count)]
    long_run = UUID(int=partitions.floor(newest).int)
    with connection.cursor() as cursor:
        cursor.execute("SET session_replication_role = replica; SET synchronous_commit = off")
    for table in _tables(version, ids, long_run):
        _copy(*table)
    with connection.cursor() as cursor:
        cursor.execute("SET session_replication_role = origin; SET synchronous_commit = on")
        for model in (Run, Operation, Stream, Event, Approval, ParkedEvent):
            cursor.execute(f"VACUUM ANALYZE {model._meta.db_table}")
        cursor.execute("CHECKPOINT")
    return long_run


def _version() -> AgentVersion:
    project = Project.objects.create(slug=SLUG, name="Bench")
    agent = Agent.objects.create(project=project, name="clerk")
    definition = {"model": "scripted:bench", "tools": ["bank/transfer"], "limits": {"turns_max": 50}}
    return AgentVersion.objects.create(agent=agent, version=1, definition=definition, digest="0" * 64)


Lines = Iterator[Sequence[str]]


def _tables(version: AgentVersion, ids: Sequence[int], long_run: UUID) -> Iterator[tuple[Model, Sequence[str], Lines]]:
    """Each table as a row that holds for all, the columns that differ, and their values row by row."""
    at = now()
    run = Run(
        project_id=SLUG, agent_version=version, input_digest="0" * 64, started_by="billing-service", turn=5,
        created_at=at, started_at=at,
    )  # fmt: skip
    yield run, ("id", "state", "failure_code", "waiting_for", "ended_at"), _runs(ids, long_run)
    operation = Operation(
        project_id=SLUG, kind="python", name="bank/transfer", arguments_digest="0" * 64, actor="clerk", effect="write",
        policy_answer="allow", attempt=1, proposed_at=at, first_dispatched_at=at, dispatched_at=at, deadline_at=at,
        settled_at=at,
    )  # fmt: skip
    columns = ("id", "run_id", "turn", "position", "state", "error_class", "result_digest")
    yield operation, columns, _operations(ids, long_run)
    event = Event(type="tool.succeeded", occurred_at=at, recorded_at=at, envelope="x" * 200)
    yield event, ("event_id", "run_id", "sequence"), _events(ids, long_run)
    stream = Stream(project=SLUG, created_at=at)
    yield stream, ("run_id", "head", "published", "seen", "ready_at", "last_error"), _streams(ids, long_run)
    approval = Approval(
        project=SLUG, agent="clerk", tool="bank/transfer", effect="write", binding="{}", binding_hash="0" * 64,
        arguments_hash="0" * 64, policy_name="default", requested_by="billing-service", requested_at=at,
        deadline_at=at + timedelta(days=1),
    )  # fmt: skip
    yield approval, ("id", "run_id", "operation_id", "state", "decided_at", "decided_by"), _requests(ids)


NULL = r"\N"


def _state(number: int) -> str:
    if number % LIVE_EACH == 1:
        return "running"
    return "failed" if number % FAILED_EACH == 0 else "completed"


def _runs(ids: Sequence[int], long_run: UUID) -> Lines:
    ended = str(now())
    for number, run in enumerate(ids):
        state = _state(number)
        waits = "approval of bank/transfer" if state == "running" else ""
        yield _id(run), state, "turns_max" if state == "failed" else "", waits, NULL if waits else ended
    yield str(long_run), "completed", "", "", ended


def _operations(ids: Sequence[int], long_run: UUID) -> Lines:
    for number, run in enumerate(ids):
        for position in range(PER_RUN):
            unclear = number % UNCERTAIN_EACH == 2 and position == 1
            state = "uncertain" if unclear else "failed" if number % FAILED_EACH == 0 and position == 2 else "succeeded"
            yield _operation(_id(run), 1, position, state)
    for turn in range(1, LONG_RUN_OPERATIONS // 2 + 1):
        for position in range(2):
            yield _operation(str(long_run), turn, position, "succeeded")


def _operation(run: str, turn: int, position: int, state: str) -> Sequence[str]:
    known = md5(f"{run}{turn}.{position}".encode(), usedforsecurity=False).hexdigest()
    result = "0" * 64 if state == "succeeded" else ""
    return known, run, str(turn), str(position), state, "" if state == "succeeded" else "timeout", result


def _events(ids: Sequence[int], long_run: UUID) -> Lines:
    for run in ids:
        for sequence in range(1, PER_RUN + 1):
            yield _id(run + (sequence << 4)), _id(run), str(sequence)
    for sequence in range(1, LONG_RUN_EVENTS + 1):
        yield _id(long_run.int + (sequence << 4)), str(long_run), str(sequence)


def _streams(ids: Sequence[int], long_run: UUID) -> Lines:
    waits, all_of_it = str(now()), str(PER_RUN)
    for number, run in enumerate(ids):
        behind = number % LIVE_EACH == 1
        done, error = ("7", "HTTP 503") if behind else (all_of_it, "")
        yield _id(run), all_of_it, done, done, waits if behind else NULL, error
    yield str(long_run), str(LONG_RUN_EVENTS), str(LONG_RUN_EVENTS), str(LONG_RUN_EVENTS), NULL, ""


def _requests(ids: Sequence[int]) -> Lines:
    decided = str(now())
    for number, run in enumerate(ids):
        if number % ASKED_EACH == 0:
            waits = number % (ASKED_EACH * 50) == 0
            call = md5(f"{_id(run)}1.3".encode(), usedforsecurity=False).hexdigest()
            state = "waiting" if waits else "granted"
            yield _id(run + 1), _id(run), call, state, NULL if waits else decided, "" if waits else "olga"


def _id(number: int) -> str:
    return f"{number:032x}"


def _copy(same: Model, columns: Sequence[str], lines: Lines) -> None:
    """Send rows that differ in some columns only; the others have what the model's own saving would write."""
    template = _template(same, columns)
    names = [field.column for field in same._meta.concrete_fields if _is_sent(same, field, columns)]
    order = [columns.index(name) for name in names if name in columns]
    text = ", ".join(f'"{name}"' for name in names)
    with (
        connection.cursor() as cursor,
        cursor.copy(f"COPY {same._meta.db_table} ({text}) FROM STDIN") as copy,
    ):
        for chunk in _chunks(lines):
            copy.write("".join(template % tuple(line[place] for place in order) for line in chunk))


def _chunks(lines: Lines) -> Iterator[list[Sequence[str]]]:
    chunk: list[Sequence[str]] = []
    for line in lines:
        chunk.append(line)
        if len(chunk) == ROWS_OF_A_COPY:
            yield chunk
            chunk = []
    yield chunk


def _is_sent(same: Model, field: Any, columns: Sequence[str]) -> bool:
    """An automatic number, and what the database fills in by itself, is left out."""
    if field.column in columns:
        return True
    return not (field.primary_key or field.generated) and not isinstance(getattr(same, field.attname), DatabaseDefault)


def _template(same: Model, columns: Sequence[str]) -> str:
    """A line of COPY's text form, with %s where rows differ."""
    parts = []
    for one in same._meta.concrete_fields:
        if one.column in columns:
            parts.append("%s")
        elif _is_sent(same, one, columns):
            parts.append(_text(one.get_db_prep_save(getattr(same, one.attname), connection)).replace("%", "%%"))
    return "\t".join(parts) + "\n"


def _text(value: Any) -> str:
    if value is None:
        return NULL
    if isinstance(value, bool):
        return "t" if value else "f"
    if isinstance(value, list):
        return "{}"
    if hasattr(value, "obj"):  # psycopg's wrapper of JSON
        value = value.dumps(value.obj) if getattr(value, "dumps", None) else "{}"
    return str(value).replace("\\", "\\\\")

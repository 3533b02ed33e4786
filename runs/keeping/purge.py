"""Delete what its project need not keep any longer: in short transactions, each whole by itself, never what is needed.

A purge that was killed has done some batches and no half one; the next one goes on with what is left.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

from django.db import connection, transaction
from django.db.models import DateTimeField, ExpressionWrapper, F, Q
from django.db.models.functions import Now
from psycopg.sql import SQL

from approvals.models import Approval, Decision, Delivery
from kernel_project.primitives.errors import Conflict
from kernel_project.primitives.sql import rows
from outbox import services as outbox
from outbox.contracts import KERNEL, Actor, NewEvent
from outbox.models import Event, ParkedEvent, Stream
from outbox.partitions import database_now
from runs.keeping import retention
from runs.keeping.retention import CLASS
from runs.models import Artifact, IdempotencyKey, News, Operation, Project, Purge, RetentionRule, Run, RunMessage

logger = logging.getLogger(__name__)
HERE = Path(__file__).parent.parent
RUNS_PER_BATCH = 20  # of one transaction: some thousand rows, some ten milliseconds
BATCHES_MAX = 1_000_000
PAUSE_SECONDS = 0.01  # between batches, in which everybody else has the database
STALE_SECONDS = 60  # a purge that has done no batch for so long was killed
HOLDS_TOLD_MAX = 50
FULL_LOOK_HOURS = 24  # in between a tick begins where the last one ended: what was kept then waits so long

T = TypeVar("T")
Rows = list[UUID]
Place = tuple[datetime, UUID]  # of a run in the order of their ends
BEGINNING = (datetime(1970, 1, 1, tzinfo=UTC), UUID(int=0))
Counts = Counter[str]


class PurgeAtWork(Conflict):
    """Another purge of the project is at work."""

    code = "purge_at_work"


class Superseded(Conflict):
    """Another purge has taken this one for dead, and written its receipt."""

    code = "purge_superseded"


@dataclass(frozen=True)
class Step:
    """One class: which runs have something of it (`work`, over the row `r`), and how it goes."""

    record_class: str
    source: str
    work: str
    delete: Callable[[str, Rows], Counts]


@dataclass(frozen=True)
class Receipt:
    """What went (or would go) by class, and which holds kept something."""

    project: str
    counts: dict[str, int]
    holds: list[dict[str, Any]]
    complete: bool


def purge(
    project: str,
    *,
    by: Actor = KERNEL,
    dry_run: bool = False,
    seconds_max: float = float("inf"),
    progress: Callable[[str, Counts], None] = lambda *_: None,
    whole: bool = True,
) -> Receipt:
    """Delete what the project's rules let go, or count it. Stops between two batches when `seconds_max` have passed.

    Without `whole` it begins where the last look ended, except for one look at everything each day. Raises PurgeAtWork,
    and Superseded when it stood still for so long that another one has taken it for dead.
    """
    rules = retention.rules(project)
    if dry_run:
        return Receipt(project, dict(_counted(project, rules)), _holds(project), complete=True)
    made = _begin(project)
    until = time.monotonic() + seconds_max
    total: Counts = Counter()
    complete = all(
        _carry_out(made, step, _begin_look(project, step, whole=whole), until, total, progress)
        for step in (STEPS if whole else _turned(STEPS))
        if step.record_class in rules
    )
    _end(made, by, total, "completed" if complete else "out of time")
    return Receipt(project, dict(total), _holds(project), complete)


def _turned(these: Sequence[T]) -> list[T]:
    """The same beginning anywhere: a tick that is too short for all of them starves none for ever."""
    begin = secrets.randbelow(max(len(these), 1))
    return [*these[begin:], *these[:begin]]


def _begin(project: str) -> Purge:
    with transaction.atomic():
        Project.objects.select_for_update(no_key=True).filter(slug=project).first()
        others = Purge.objects.filter(project=project, ended_at__isnull=True)
        if others.filter(beat_at__gt=Now() - timedelta(seconds=STALE_SECONDS)).exists():
            raise PurgeAtWork(f"another purge of {project} is at work, or was killed less than {STALE_SECONDS} s ago")
        for killed in others.select_for_update(no_key=True):  # after its last batch, whose counts are in its row
            _end(killed, KERNEL, Counter(killed.counts), "interrupted")
        return Purge.objects.create(project=project)


def _end(made: Purge, by: Actor, counts: Counts, outcome: str) -> None:
    """The receipt: of a purge that did anything, or was killed, also as an event."""
    with transaction.atomic():
        ended = Purge.objects.filter(id=made.id, ended_at__isnull=True).update(ended_at=Now(), outcome=outcome[:20])
        if ended and (counts or outcome == "interrupted"):
            data = {"outcome": outcome, "deleted": dict(counts), "holds": _holds(made.project)}
            outbox.append([NewEvent(made.id, made.project, "retention.purged", made.id, data, actor=by)])


@dataclass(frozen=True)
class Look:
    """One pass over the runs of a class, in the order of their ends: from where, and up to which end."""

    begin: Place
    edge: datetime


def _begin_look(project: str, step: Step, *, whole: bool) -> Look:
    rule = RetentionRule.objects.filter(project=project, record_class=step.record_class)
    over_since = ExpressionWrapper(F("looked_all_at") - F("days") * timedelta(days=1), output_field=DateTimeField())
    stale = Q(looked_all_at__isnull=True) | Q(
        looked_all_at__lt=Now() - timedelta(hours=FULL_LOOK_HOURS),
        looked_until__gte=over_since,  # the last one came to what was its end: one that did not is gone on with
    )
    for chosen in [rule] if whole else [rule.filter(stale)]:
        chosen.update(looked_all_at=Now(), looked_until=None)
    over = ExpressionWrapper(Now() - F("days") * timedelta(days=1), output_field=DateTimeField())
    edge, until = rule.values_list(over, "looked_until").first() or BEGINNING[:1] * 2  # its rule is gone: nothing goes
    return Look((until, UUID(int=0)) if until else BEGINNING, edge)


def _carry_out(
    made: Purge, step: Step, look: Look, until: float, total: Counts, progress: Callable[[str, Counts], None]
) -> bool:
    """Batch after batch of one class; False if the time ran out first. The next tick goes on from there."""
    rule = RetentionRule.objects.filter(project=made.project, record_class=step.record_class)
    after = look.begin
    for _ in range(BATCHES_MAX):
        if time.monotonic() > until:
            return False
        found = _candidates(made.project, step, look.edge, after)
        if not found:
            rule.update(looked_until=look.edge)
            return True
        after = found[-1]
        total.update(_batch(made, step, look.edge, [run_id for _, run_id in found], total))
        rule.update(looked_until=after[0])
        progress(step.record_class, total)
        _pause()
    return False


@transaction.atomic
def _batch(made: Purge, step: Step, edge: datetime, run_ids: Rows, total: Counts) -> Counts:
    """Some runs of one class, and what has gone so far, in one transaction.

    They were found before it began. The project's row is locked first: a hold that is being placed comes before this
    batch or after it; only then is it asked which of them may still go.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT slug FROM runs_project WHERE slug = %s FOR SHARE", [made.project])
        cursor.execute("SET LOCAL kernel.purge = 'on'")
    if not Purge.objects.filter(id=made.id, ended_at__isnull=True).update(beat_at=Now()):
        raise Superseded(f"this purge of {made.project} stood still, and another one has taken it for dead")
    going = _lock(made.project, step, edge, run_ids)
    went = step.delete(made.project, going) if going else Counter()
    Purge.objects.filter(id=made.id).update(beat_at=Now(), counts=dict(total + went))
    return went


def _candidates(project: str, step: Step, edge: datetime, after: Place) -> list[Place]:
    """The next runs, without a lock: it may take long where many are kept."""
    given = {"project": project, "edge": edge, "after_end": after[0], "after": after[1], "runs": RUNS_PER_BATCH}
    found = rows(HERE, step.source, given, work=SQL(step.work), among=SQL(""), lock=SQL(""))
    return [(ended_at, run_id) for ended_at, run_id in found]


def _lock(project: str, step: Step, edge: datetime, run_ids: Rows) -> Rows:
    """Which of these runs may go, locked until they have."""
    given = {
        "project": project, "edge": edge, "after_end": BEGINNING[0], "after": BEGINNING[1], "runs": RUNS_PER_BATCH,
        "run_ids": run_ids,
    }  # fmt: skip
    among = SQL("AND r.id = ANY(%(run_ids)s::uuid[])" if step.source == "purge_runs" else
                "AND r.run_id = ANY(%(run_ids)s::uuid[])")  # fmt: skip
    found = rows(HERE, step.source, given, work=SQL(step.work), among=among, lock=SQL("FOR UPDATE OF r SKIP LOCKED"))
    return [run_id for _, run_id in found]


def _counted(project: str, rules: dict[str, int]) -> Counts:
    """How many runs have something of each class that would go; a rule further down may find more once they went."""
    counts: Counts = Counter()
    for step in STEPS:
        after, edge = BEGINNING, database_now() - timedelta(days=rules.get(step.record_class, 0))
        for _ in range(BATCHES_MAX if step.record_class in rules else 0):
            found = _candidates(project, step, edge, after)
            if not found:
                break
            after = found[-1]
            counts[f"runs with {step.record_class}"] += len(found)
    return counts


def _holds(project: str) -> list[dict[str, Any]]:
    found = rows(HERE, "purge_held", {"project": project, "holds": HOLDS_TOLD_MAX})
    return [{"hold": str(hold), "scope": scope, "ended_runs": kept} for hold, scope, kept in found]


def _pause() -> None:
    time.sleep(PAUSE_SECONDS)


def _bodies(kind: str) -> Callable[[str, Rows], Counts]:
    def delete(project: str, run_ids: Rows) -> Counts:
        unpurged = Artifact.objects.filter(run_id__in=run_ids, kind=kind, purged_at__isnull=True)
        before = unpurged.count()
        rows(HERE, "purge_bodies", {"run_ids": run_ids, "kind": kind, "project": project})
        return Counter({f"artifact.{kind}": before - unpurged.count()})

    return delete


def _runs(_project: str, run_ids: Rows) -> Counts:
    """Tombstones first: there is no moment in which a repetition would not be known."""
    rows(HERE, "bury_runs", {"run_ids": run_ids})
    return _gone(
        operations=Operation.objects.filter(run_id__in=run_ids),
        artifacts=Artifact.objects.filter(run_id__in=run_ids),
        messages=RunMessage.objects.filter(run_id__in=run_ids),
        news=News.objects.filter(run_id__in=run_ids),
        runs=Run.objects.filter(id__in=run_ids),
    )


def _events(_project: str, run_ids: Rows) -> Counts:
    return _gone(
        events=Event.objects.filter(run_id__in=run_ids),
        parked=ParkedEvent.objects.filter(run_id__in=run_ids),
        streams=Stream.objects.filter(run_id__in=run_ids),
    )


def _approvals(_project: str, run_ids: Rows) -> Counts:
    return _gone(
        messages=Delivery.objects.filter(run_id__in=run_ids),
        decisions=Decision.objects.filter(approval__run_id__in=run_ids),
        approvals=Approval.objects.filter(run_id__in=run_ids),
    )


def _keys(_project: str, run_ids: Rows) -> Counts:
    return _gone(idempotency_keys=IdempotencyKey.objects.filter(run_id__in=run_ids))


def _gone(**found: Any) -> Counts:
    """Delete each in its order, without loading a row; the triggers of the database have the last word."""
    return Counter({name: count for name, these in found.items() if (count := these._raw_delete(these.db))})


UNSEEN = "NOT EXISTS (SELECT FROM outbox_parkedevent p WHERE p.run_id = r.run_id AND p.state IN ('parked', 'queued'))"
HELD_CONTENT = (
    "NOT EXISTS (SELECT FROM runs_artifact a JOIN runs_hold h ON h.digest = a.digest"
    " WHERE a.run_id = r.id AND h.project = r.project_id AND h.released_at IS NULL)"
)
ASKED_OR_TOLD = (
    "(EXISTS (SELECT FROM approvals_approval a WHERE a.run_id = r.run_id)"
    " OR EXISTS (SELECT FROM approvals_delivery d WHERE d.run_id = r.run_id))"
)
NO_MESSAGE = "NOT EXISTS (SELECT FROM approvals_delivery d WHERE d.run_id = r.run_id AND d.next_attempt_at IS NOT NULL)"
STEPS: Sequence[Step] = (
    *(
        Step(
            f"artifact.{kind}",
            "purge_runs",
            f"EXISTS (SELECT FROM runs_artifact a WHERE a.run_id = r.id AND a.kind = '{kind}' AND a.purged_at IS NULL)",
            _bodies(kind),
        )
        for kind in Artifact.Kind.values
    ),
    Step(CLASS.RUNS, "purge_runs", HELD_CONTENT, _runs),
    Step(
        CLASS.EVENTS,
        "purge_tombstones",
        f"EXISTS (SELECT FROM outbox_stream s WHERE s.run_id = r.run_id AND s.published = s.head) AND {UNSEEN}",
        _events,
    ),
    Step(
        CLASS.APPROVALS,
        "purge_tombstones",
        f"{ASKED_OR_TOLD} AND {NO_MESSAGE}",
        _approvals,
    ),
    Step(
        CLASS.KEYS,
        "purge_tombstones",
        f"r.purged_at < clock_timestamp() - interval '{retention.KEYS_OUTLIVE_DAYS} days'"
        " AND EXISTS (SELECT FROM runs_idempotencykey k WHERE k.run_id = r.run_id)",
        _keys,
    ),
)


def purge_all(seconds_max: float) -> int:
    """One tick for all projects that have rules; the next one goes on. Returns how many rows went."""
    until = time.monotonic() + seconds_max
    went = 0
    for project in retention.projects():
        try:
            receipt = purge(project, seconds_max=max(until - time.monotonic(), 0), whole=False)
        except (PurgeAtWork, Superseded) as error:
            logger.info("%s", error.message)
            continue
        went += sum(receipt.counts.values())
    return went

"""Ask the event store how far it has each run, so that "acknowledged" and "seen over there" are two numbers (I5)."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Sequence, Set
from pathlib import Path
from uuid import UUID

import httpx2
from django.conf import settings
from django.db import connection
from pydantic import ValidationError

from kernel_project.primitives.sql import load
from outbox.models import ParkedEvent
from outbox.source import source_ids
from temporality.contracts import RUN_PROGRESS_PATH, ProgressAnswer, RunProgress

logger = logging.getLogger(__name__)
HERE = Path(__file__).parent

RUNS_PER_REQUEST = 100  # half of what the contract allows
STREAMS_MAX = 500  # that one look asks about
LOOK_SECONDS_MAX = 60.0  # after which no more projects are asked: the next look goes on
REFUSED_MAX = 10_000  # refused events of the runs of one request
AGAIN_SECONDS = 30.0  # a run of which something is missing over there is asked about again
REQUEST_TIMEOUT_SECONDS = 10.0


def look(client: httpx2.Client | None = None) -> int:
    """Ask about streams that moved since they were last seen; returns how many answers were written down.

    A server that does not know this question (it is an addition of ours to the contract) leaves them as not asked. Each
    project is asked for itself: one that is refused hides no other.
    """
    runs: dict[str, list[UUID]] = defaultdict(list)
    for run_id, project in _to_be_seen():
        runs[project].append(run_id)
    own = client or httpx2.Client(timeout=REQUEST_TIMEOUT_SECONDS, trust_env=False)
    until, done = time.monotonic() + LOOK_SECONDS_MAX, 0
    try:
        for project, asked in runs.items():
            if time.monotonic() < until:
                done += _ask_project(own, project, asked)
    except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:  # it is away for all of them
        logger.info("the event store was not asked what it has (%s)", type(error).__name__)
    finally:
        if client is None:
            own.close()
    return done


def _to_be_seen() -> list[tuple[UUID, str]]:
    with connection.cursor() as cursor:
        cursor.execute(load(HERE, "to_be_seen"), {"again_seconds": AGAIN_SECONDS, "streams": STREAMS_MAX})
        return list(cursor.fetchall())


def _ask_project(client: httpx2.Client, project: str, runs: list[UUID]) -> int:
    """Whatever comes of it, these runs were asked about now: the next look begins with others."""
    done = 0
    try:
        for start in range(0, len(runs), RUNS_PER_REQUEST):
            done += _ask(client, project, runs[start : start + RUNS_PER_REQUEST])
    except (httpx2.ConnectError, httpx2.ConnectTimeout):
        raise
    except (httpx2.HTTPError, ValidationError) as error:
        logger.info("the event store did not say what it has of a project (%s)", type(error).__name__)
    _turn_over(runs)
    return done


def _turn_over(runs: Sequence[UUID]) -> None:
    """They come after all that was not asked about since, whether they were answered or not. Waits for no writer."""
    with connection.cursor() as cursor:
        cursor.execute(load(HERE, "turn_over"), {"run_ids": list(runs), "again_seconds": AGAIN_SECONDS})


def _ask(client: httpx2.Client, project: str, runs: list[UUID]) -> int:
    progress: dict[str, list[RunProgress]] = defaultdict(list)
    for source in source_ids():
        for found in _answer(client, project, source, runs):
            progress[found.run].append(found)
    refused = _refused(runs)
    return sum(_write_down(run, contiguous(progress[str(run)], refused[run])) for run in runs if progress[str(run)])


def _write_down(run: UUID, seen: int) -> int:
    with connection.cursor() as cursor:
        cursor.execute(load(HERE, "saw"), {"run_id": run, "seen": seen})
        return int(cursor.rowcount)


def _refused(runs: Sequence[UUID]) -> dict[UUID, set[int]]:
    """The sequences that the event store refused for good: it need not have them."""
    refused: dict[UUID, set[int]] = defaultdict(set)
    rows = ParkedEvent.objects.filter(run_id__in=runs).exclude(state=ParkedEvent.State.REPLAYED)
    for run_id, sequence in rows.values_list("run_id", "sequence")[:REFUSED_MAX]:
        refused[run_id].add(sequence)
    return refused


def _answer(client: httpx2.Client, project: str, source: str, runs: list[UUID]) -> list[RunProgress]:
    answer = client.get(
        settings.TEMPORALITY_URL.rstrip("/") + RUN_PROGRESS_PATH,
        params=[("project", project), ("source_id", source), *(("run", str(run)) for run in runs)],
        headers={"Authorization": f"Bearer {settings.TEMPORALITY_TOKEN}"},
    )
    answer.raise_for_status()
    return ProgressAnswer.model_validate_json(answer.content).runs


def contiguous(progress: Sequence[RunProgress], refused: Set[int] = frozenset()) -> int:
    """Up to which sequence nothing is missing but what was refused, over all names that the run's events bear, the
    oldest name first.

    What a name has counts from where the names before it end; of those, what lies beyond is of a time that the restore
    from a backup undid. A later name whose events are not all there adds nothing: one cannot tell what is missing.
    """
    reach = 0
    for told in progress:
        before = 0 if told.contiguous else reach
        excused = sum(max(told.contiguous, reach) < sequence <= told.highest for sequence in refused)
        if told.count and told.count + excused >= told.highest - before:
            reach = told.highest
        elif told.contiguous:
            reach = told.contiguous
    while reach + 1 in refused:
        reach += 1
    return reach

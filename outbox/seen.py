"""Ask the event store how far it has each run, so that "acknowledged" and "seen over there" are two numbers (I5)."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

import httpx2
from django.conf import settings
from django.db import connection
from django.db.models.functions import Now
from pydantic import ValidationError

from kernel_project.primitives.sql import load
from outbox.models import Stream
from outbox.source import source_ids
from temporality.contracts import RUN_PROGRESS_PATH, ProgressAnswer, RunProgress

logger = logging.getLogger(__name__)
HERE = Path(__file__).parent

RUNS_PER_REQUEST = 100  # half of what the contract allows
STREAMS_MAX = 500  # that one look asks about
AGAIN_SECONDS = 30.0  # a run of which something is missing over there is asked about again
REQUEST_TIMEOUT_SECONDS = 10.0


def look(client: httpx2.Client | None = None) -> int:
    """Ask about streams that moved since they were last seen; returns how many answers were written down.

    A server that does not know this question (it is an addition of ours to the contract) leaves them as not asked.
    """
    with connection.cursor() as cursor:
        cursor.execute(load(HERE, "to_be_seen"), {"again_seconds": AGAIN_SECONDS, "streams": STREAMS_MAX})
        rows = cursor.fetchall()
    runs: dict[str, list[UUID]] = defaultdict(list)
    for run_id, project in rows:
        runs[project].append(run_id)
    own = client or httpx2.Client(timeout=REQUEST_TIMEOUT_SECONDS, trust_env=False)
    try:
        return sum(
            _ask(own, project, asked[start : start + RUNS_PER_REQUEST])
            for project, asked in runs.items()
            for start in range(0, len(asked), RUNS_PER_REQUEST)
        )
    except (httpx2.HTTPError, ValidationError) as error:
        logger.info("the event store was not asked what it has (%s)", type(error).__name__)
        return 0
    finally:
        if client is None:
            own.close()


def _ask(client: httpx2.Client, project: str, runs: list[UUID]) -> int:
    progress: dict[str, list[RunProgress]] = defaultdict(list)
    for source in source_ids():
        for found in _answer(client, project, source, runs):
            progress[found.run].append(found)
    return sum(
        Stream.objects.filter(run_id=run).update(seen=contiguous(progress[str(run)]), seen_at=Now())
        for run in runs
        if progress[str(run)]
    )


def _answer(client: httpx2.Client, project: str, source: str, runs: list[UUID]) -> list[RunProgress]:
    answer = client.get(
        settings.TEMPORALITY_URL.rstrip("/") + RUN_PROGRESS_PATH,
        params=[("project", project), ("source_id", source), *(("run", str(run)) for run in runs)],
        headers={"Authorization": f"Bearer {settings.TEMPORALITY_TOKEN}"},
    )
    answer.raise_for_status()
    return ProgressAnswer.model_validate_json(answer.content).runs


def contiguous(progress: Sequence[RunProgress]) -> int:
    """Up to which sequence nothing is missing, over all names that the run's events bear, the oldest name first.

    What a name has counts from where the names before it end; of those, what lies beyond is of a time that the restore
    from a backup undid. A later name whose events are not all there adds nothing: one cannot tell what is missing.
    """
    reach = 0
    for told in progress:
        first = told.highest - told.count + 1
        if told.contiguous:
            reach = told.contiguous
        elif told.count and first <= reach + 1:
            reach = told.highest
    return reach

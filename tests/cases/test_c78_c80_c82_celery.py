"""C78, C80, C82 with real processes: two beats and a worker; the broker loses everything; beat falls silent.

Nothing needed for correctness lives in the broker: every tick may be doubled, lost or late.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from subprocess import Popen
from uuid import UUID

import pytest
from django.db import connection
from django.db.models.functions import Now

from kernel_project.devstack.process import Server
from kernel_project.primitives.ids import new_id
from outbox import jobs
from outbox.models import Destination, PeriodicJob, Stream
from tests.fakes.event_store import FakeEventStore, fake_event_store
from tests.outbox_celery import CeleryProcesses
from tests.outbox_scene import numbered, pending, unaccounted, write
from tests.waiting import until_sync

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(420)]
START_SECONDS = 150  # a busy machine loads four processes for a long time
HEAL_SECONDS = 60


@pytest.fixture
def store() -> Iterator[FakeEventStore]:
    with fake_event_store() as fake:
        yield fake


@pytest.fixture
def celery(valkey: Server, store: FakeEventStore, tmp_path: Path) -> Iterator[CeleryProcesses]:
    with CeleryProcesses(tmp_path, store.url) as processes:
        yield processes


def told_until_delivered(*runs: UUID, seconds: float = HEAL_SECONDS) -> None:
    for run in runs:
        write(run, *numbered(3))
    until_sync(lambda: pending() == 0, seconds, lambda: list(Stream.objects.values("published", "head", "last_error")))


def events_sent(store: FakeEventStore) -> int:
    return sum(body.count(b'"schema"') for body in store.bodies)


def job_ages() -> dict[str, float]:
    return {job.name: job.age_seconds for job in jobs.all_jobs()}


def test_c78_c80_c82_ticks_may_be_doubled_lost_and_late(celery: CeleryProcesses, store: FakeEventStore, valkey: Server):
    worker, first, second = celery.worker("outbox", 2), celery.beat(), celery.beat()
    told_until_delivered(*(new_id() for _ in range(5)), seconds=START_SECONDS)
    two_beats_send_everything_once(store)
    nobody_does_any_other_job(celery)
    the_broker_loses_everything(valkey, store)
    both_beats_fall_silent(first, second)
    the_worker_is_killed(celery, worker, store)


def two_beats_send_everything_once(store: FakeEventStore) -> None:
    """C78, T34: the second publisher finds the place taken, leaves at once, and is counted."""
    until_sync(lambda: Destination.objects.filter(turned_away__gte=2).exists(), HEAL_SECONDS)
    told_until_delivered(*(new_id() for _ in range(5)))
    assert events_sent(store) == len(store.kept)
    assert (store.order_breaks(), store.changed) == ([], [])


def nobody_does_any_other_job(celery: CeleryProcesses) -> None:
    """T34: however long the jobs of the other queue take, the publisher's ticks have a worker of their own."""
    Destination.objects.update(worker_token=None, worker_until=None)  # who is at work leaves: the next tick goes on
    told_until_delivered(new_id())
    assert job_ages() == {}
    celery.worker("kernel")


def the_broker_loses_everything(valkey: Server, store: FakeEventStore) -> None:
    """C80, T37, T38: writes go on, the publisher goes on or is back soon, and the jobs run again."""
    for _ in range(3):
        valkey.kill()
        write(new_id(), "while it is away")
        valkey.start()
    told_until_delivered(new_id())
    PeriodicJob.objects.update(last_success_at=Now() - timedelta(hours=1))
    until_sync(lambda: job_ages().get("outbox.look_over_there", 9e9) < 60, START_SECONDS, job_ages)
    assert unaccounted() == 0
    assert events_sent(store) == len(store.kept)


def both_beats_fall_silent(*beats: Popen[bytes]) -> None:
    """C82: alive and sending nothing; it is seen, and afterwards each job is caught up once."""
    for beat in beats:
        beat.send_signal(signal.SIGSTOP)
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_sleep(1.5)")  # what was ticked before is done by now
    PeriodicJob.objects.filter(name="outbox.look_over_there").update(last_success_at=Now() - timedelta(seconds=16))
    assert [job.name for job in jobs.all_jobs() if job.overdue] == ["outbox.look_over_there"]
    for beat in beats:
        beat.send_signal(signal.SIGCONT)
    until_sync(lambda: not any(job.overdue for job in jobs.all_jobs()), HEAL_SECONDS, job_ages)


def the_worker_is_killed(celery: CeleryProcesses, worker: Popen[bytes], store: FakeEventStore) -> None:
    """T22, T37: a new worker goes on as soon as the dead one's place has expired."""
    worker.kill()
    worker.wait()
    run = new_id()
    write(run, *numbered(3))
    celery.worker()
    told_until_delivered(new_id(), seconds=START_SECONDS)
    assert store.sequences(str(run)) == [1, 2, 3]
    assert (unaccounted(), store.order_breaks(), store.changed) == (0, [], [])

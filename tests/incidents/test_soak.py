"""Writers write while publisher, database sessions, event store and broker are killed in turn: nothing is lost.

Half a minute in its short form. The long form: OUTBOX_SOAK_SECONDS=3600 pytest tests/incidents/test_soak.py
"""

from __future__ import annotations

import itertools
import os
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from django.conf import settings
from django.db import Error, connection
from django.db.models import F

from kernel_project.devstack.postgres import Postgres
from kernel_project.devstack.process import Server
from kernel_project.primitives.ids import event_id, new_id
from outbox import seen, selectors
from outbox.models import Event, ParkedEvent, Stream
from tests.outbox_celery import CeleryProcesses
from tests.outbox_scene import pending, write
from tests.temporality_server import EventStore, running
from tests.waiting import until_sync

SOAK_SECONDS = float(os.environ.get("OUTBOX_SOAK_SECONDS", "8"))
DRAIN_SECONDS = 120.0
PAUSE_SECONDS = (0.5, 2.0)  # between two kills
WRITERS = 2
RUNS_PER_WRITER = 10
WRITE_PAUSE_SECONDS = 0.02

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(SOAK_SECONDS + DRAIN_SECONDS + 240)]


@pytest.fixture
def event_store(postgres: Postgres) -> Iterator[EventStore]:
    with running(postgres) as store:
        yield store


@pytest.fixture
def celery(event_store: EventStore, tmp_path: Path) -> Iterator[CeleryProcesses]:
    with CeleryProcesses(tmp_path, event_store.url, event_store.token()) as processes:
        yield processes


class Writers:
    """Threads that write until they are told to stop, and know what was committed for certain."""

    def __init__(self) -> None:
        self.committed: set[str] = set()  # event ids
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._write, args=[number]) for number in range(WRITERS)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)

    def _write(self, number: int) -> None:
        runs = [new_id() for _ in range(RUNS_PER_WRITER)]
        for turn in itertools.count():
            if self._stop.wait(WRITE_PAUSE_SECONDS):
                break
            run, subject = runs[turn % len(runs)], f"{number}/{turn}"
            try:
                write(run, subject)
                self.committed.add(str(event_id(run, subject, "test.happened", 1)))
            except Error:  # perhaps committed, perhaps not: telling it again is one event either way
                connection.close()
        connection.close()


def test_a_soak_of_kills_loses_nothing_reorders_nothing_and_accounts_for_everything(
    postgres: Postgres, valkey: Server, event_store: EventStore, celery: CeleryProcesses
):
    workers = [celery.worker()]
    celery.beat()

    def kill_the_publisher() -> None:
        workers[-1].kill()
        workers[-1].wait()
        workers.append(celery.worker())

    def kill_the_event_store() -> None:
        event_store.kill()
        event_store.start()

    def kill_the_broker() -> None:
        valkey.kill()
        valkey.start()

    kills: list[Callable[[], object]] = [
        lambda: postgres.terminate_backends(connection.settings_dict["NAME"]), kill_the_event_store, kill_the_broker,
        kill_the_publisher,
    ]  # fmt: skip
    writers = Writers()
    writers.start()
    until_sync(lambda: Stream.objects.filter(published__gt=0).exists(), 90)
    chaos(kills)
    writers.stop()
    connection.close()
    until_sync(lambda: patiently(pending) == 0, DRAIN_SECONDS, lambda: patiently(selectors.lag))
    nothing_was_lost(writers, event_store)
    everything_is_accounted_for(event_store)


def chaos(kills: list[Callable[[], object]]) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")  # noqa: T201  shown when the test fails
    chance = random.Random(seed)
    until = time.monotonic() + SOAK_SECONDS
    for kill in itertools.cycle(kills):
        kill()
        time.sleep(chance.uniform(*PAUSE_SECONDS))
        if time.monotonic() > until:
            return


def patiently(read: Callable[[], object]) -> object:
    """Our own connections were cut, too."""
    try:
        return read()
    except Error:
        connection.close()
        return None


def arrived(event_store: EventStore) -> list[tuple[str, int, str]]:
    """(run, sequence, event id) in the order of arrival."""
    with psycopg.connect(event_store.database_url) as session:
        return session.execute(
            "SELECT run, sequence, event_id FROM temporality_event WHERE source_id = %s ORDER BY position",
            [settings.KERNEL_SOURCE_ID],
        ).fetchall()


def nothing_was_lost(writers: Writers, event_store: EventStore) -> None:
    there = arrived(event_store)
    journal = [
        (str(run), sequence, str(name))
        for run, sequence, name in Event.objects.values_list("run_id", "sequence", "event_id")
    ]
    assert sorted(there) == sorted(journal)
    assert writers.committed
    assert writers.committed - {name for _, _, name in there} == set()
    by_run: dict[str, list[int]] = defaultdict(list)
    for run, sequence, _ in there:
        by_run[run].append(sequence)
    assert [run for run, numbers in by_run.items() if numbers != list(range(1, len(numbers) + 1))] == []


def everything_is_accounted_for(event_store: EventStore) -> None:
    assert (selectors.lag().unaccounted, ParkedEvent.objects.count()) == (0, 0)
    assert Event.objects.count() == sum(Stream.objects.values_list("published", flat=True))
    with psycopg.connect(event_store.database_url) as session:
        assert session.execute("SELECT count(*) FROM temporality_conflict").fetchone() == (0,)
    token = event_store.token()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(settings, "TEMPORALITY_URL", event_store.url)
        patch.setattr(settings, "TEMPORALITY_TOKEN", token)
        patch.setattr(seen, "AGAIN_SECONDS", 0.5)
        until_sync(lambda: seen.look() == 0 and not Stream.objects.exclude(seen=F("published")).exists(), 30)

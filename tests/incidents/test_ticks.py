"""T34 to T38 and C82: what the schedule itself promises, whatever the broker does with the ticks."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from celery.schedules import schedule
from django.conf import settings
from django.db import connection
from django.db.models.functions import Now

from kernel_project.celery import INTERVALS, app, note_success
from kernel_project.primitives.ids import new_id
from outbox import jobs, tasks
from outbox.models import Destination, PeriodicJob
from outbox.publisher import NullSink, Publisher
from tests.fakes.event_store import FakeEventStore, fake_event_store
from tests.outbox_scene import numbered, pending, write

TICKS = app.conf.beat_schedule


@pytest.fixture
def store(settings) -> Iterator[FakeEventStore]:
    with fake_event_store() as fake:
        settings.TEMPORALITY_URL = fake.url
        yield fake


@pytest.mark.parametrize("name", sorted(TICKS))
def test_t35_a_tick_that_nobody_took_expires_before_the_next_one(name):
    """A worker that was away for ten minutes finds one tick of each job, and not six hundred."""
    assert TICKS[name]["options"]["expires"] <= TICKS[name]["schedule"]


def test_t34_publishing_has_a_queue_of_its_own():
    """A slow job of another kind does not keep the events waiting."""
    queues = {tick["options"]["queue"] for tick in TICKS.values() if tick["task"] != "outbox.publish"}
    assert TICKS["publish"]["options"]["queue"] == "outbox"
    assert "outbox" not in queues


def test_t37_a_tick_is_acknowledged_before_it_runs_and_none_is_fetched_ahead():
    """Redelivered after hours it would only be a second one; lost, the next one does its work."""
    assert app.conf.task_acks_late is False
    assert app.conf.worker_prefetch_multiplier == 1


def test_c82_no_schedule_knows_a_time_zone_or_a_day():
    """They are intervals in UTC: the end of summer time, or a clock that goes back, skips and doubles nothing."""
    assert (app.conf.timezone, app.conf.enable_utc, settings.USE_TZ) == ("UTC", True, True)
    assert all(isinstance(tick["schedule"], float) for tick in TICKS.values())


def test_c82_after_two_hours_of_silence_a_job_is_due_once():
    every = schedule(timedelta(seconds=5), app=app)
    due, again_in = every.is_due(datetime.now(UTC) - timedelta(hours=2))
    assert (due, again_in) == (True, 5.0)


@pytest.mark.django_db(transaction=True)
def test_t34_fifty_ticks_at_once_are_one_publisher(store, monkeypatch):
    monkeypatch.setattr(tasks, "PUBLISH_SECONDS", 2.0)
    for _ in range(5):
        write(new_id(), *numbered(20))
    took: list[float] = []

    def tick() -> None:
        began = time.monotonic()
        tasks.publish()
        took.append(time.monotonic() - began)
        connection.close()

    threads = [threading.Thread(target=tick) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (pending(), len(store.kept), store.order_breaks()) == (0, 100, [])
    assert sum(body.count(b'"schema"') for body in store.bodies) == 100
    assert Destination.objects.get(name=store.url).turned_away == 7


@pytest.mark.django_db(transaction=True)
def test_t38_without_a_broker_events_are_written_and_the_command_delivers_them(store):
    from django.core.management import call_command

    run = new_id()
    write(run, *numbered(3))
    call_command("outbox_publish", "--seconds", "1")
    assert (pending(), store.sequences(str(run))) == (0, [1, 2, 3])


@pytest.mark.django_db(transaction=True)
def test_t38_the_command_stands_by_while_another_publisher_is_at_work_and_takes_over():
    from outbox import place

    sink = NullSink()
    write(new_id(), "a")
    first, second = Publisher(sink), Publisher(sink)
    assert place.take(sink.name, first.place)
    worker = threading.Thread(target=lambda: (second.run(20, stand_by=True), connection.close()))
    worker.start()
    time.sleep(0.5)
    assert pending() == 1
    place.leave(sink.name, first.place)
    deadline = time.monotonic() + 15
    while pending() and time.monotonic() < deadline:
        time.sleep(0.05)
    second.stop()
    worker.join(20)
    assert pending() == 0


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("name", sorted(INTERVALS))
def test_c80_each_job_leaves_the_time_of_its_last_success(name):
    note_success(sender=app.tasks.get(name) or type("Task", (), {"name": name}))
    [job] = jobs.all_jobs()
    assert (job.name, job.interval_seconds, job.overdue) == (name, INTERVALS[name], False)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("interval", "age", "overdue"), [(5.0, 14, False), (5.0, 16, True), (60.0, 119, False), (60.0, 125, True)]
)
def test_c82_a_job_is_overdue_within_two_intervals(interval, age, overdue):
    PeriodicJob.objects.create(name="x", interval_seconds=interval, last_success_at=Now() - timedelta(seconds=age))
    assert jobs.all_jobs()[0].overdue is overdue


@pytest.mark.django_db(transaction=True)
def test_c80_an_overdue_job_turns_readiness_red_by_name(client, temporal_server, valkey):
    PeriodicJob.objects.create(
        name="approvals.expire", interval_seconds=5.0, last_success_at=Now() - timedelta(minutes=10)
    )
    answer = client.get("/readyz")
    assert answer.status_code == 503
    assert "approvals.expire" in answer.json()["checks"]["jobs"]

"""C82. Clocks that are wrong: the host's in either direction, and the database's, set back or ahead by two hours.

Delivery goes on within seconds, no age is negative, and nothing dead looks alive.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import httpx2
import pytest
from django.conf import settings
from django.db import transaction
from django.db.models import F
from django.db.models.functions import Now

from kernel_project.primitives.clock import now
from kernel_project.primitives.ids import new_id
from outbox import destination, jobs, place, selectors, services
from outbox.api import project_lag
from outbox.contracts import NewEvent
from outbox.models import Destination, PeriodicJob, PublisherHeartbeat, Stream
from outbox.publisher import NullSink, Publisher
from tests.outbox_scene import pending, write

pytestmark = pytest.mark.django_db(transaction=True)
STEP = timedelta(hours=2)


@pytest.mark.parametrize("wait", ["lease", "circuit", "attempt"])
def test_c82_after_the_clock_went_back_nothing_waits_for_the_old_time(wait):
    """What was set before lies two hours ahead of now."""
    sink = NullSink()
    assert place.take(sink.name, uuid4())  # and then it was killed
    Destination.objects.update(worker_until=F("worker_until") + STEP)
    write(new_id(), "a")
    soon = Now() + STEP + timedelta(seconds=1)
    match wait:
        case "lease":
            Stream.objects.update(lease_token=uuid4(), leased_until=soon)
        case "circuit":
            Destination.objects.update(failures=1, open_until=soon)
        case "attempt":
            Stream.objects.update(next_attempt_at=soon)
    publisher = Publisher(sink)
    publisher.run(1.0)
    publisher.close()
    assert (pending(), Destination.objects.get().turned_away) == (0, 0)


def test_c82_a_small_step_back_takes_the_place_from_nobody():
    holder = uuid4()
    assert place.take("null", holder)
    Destination.objects.update(worker_until=F("worker_until") + timedelta(seconds=3))
    assert not place.take("null", uuid4())
    assert place.renew("null", holder)


@pytest.mark.parametrize("wrong_by", [timedelta(days=3), timedelta(days=-3)], ids=["fast", "slow"])
def test_c82_the_clock_of_the_host_makes_no_age_and_no_heartbeat(wrong_by, monkeypatch):
    monkeypatch.setattr("outbox.destination.now", lambda: now() + wrong_by)
    event = NewEvent(run_id=new_id(), project="demo", type="t", subject="a", occurred_at=now() + wrong_by)
    with transaction.atomic():
        services.append([event])
    assert 0 <= (selectors.lag().oldest_age_seconds or 0) < 30
    publisher = Publisher(NullSink())
    publisher.run(0.3)
    publisher.close()
    found = selectors.lag()
    assert (found.pending, found.oldest_age_seconds, found.publisher_late) == (0, None, False)
    assert 0 <= (found.publisher_age_seconds or 0) < 10


def test_c82_only_what_the_host_tells_and_never_what_it_judges_is_by_its_clock():
    """When an event occurred; and a `Retry-After` that is a date, if its answer has none of its own."""
    sources = (Path(settings.BASE_DIR) / "outbox").glob("*.py")
    users = {path.name for path in sources if "clock import now" in path.read_text()}
    assert users == {"contracts.py", "destination.py", "bench.py"}


@pytest.mark.parametrize("wrong_by", [timedelta(days=3), timedelta(days=-3)], ids=["fast", "slow"])
def test_c82_a_date_to_retry_after_is_read_by_the_clock_that_wrote_it(wrong_by, monkeypatch):
    monkeypatch.setattr("outbox.destination.now", lambda: now() + wrong_by)
    headers = {"Date": "Tue, 01 Dec 2026 00:00:00 GMT", "Retry-After": "Tue, 01 Dec 2026 00:02:00 GMT"}
    assert destination._retry_after(httpx2.Headers(headers)) == 120


def test_c82_a_heartbeat_of_the_future_is_no_sign_of_life():
    PublisherHeartbeat.objects.create(publisher="dead", beat_at=Now() + STEP)
    for found in (selectors.lag(), project_lag("demo")):
        assert (found.publisher_age_seconds, found.publisher_late) == (None, True)
    place.beat("alive", 0, 0)
    for found in (selectors.lag(), project_lag("demo")):
        assert 0 <= (found.publisher_age_seconds or 0) < 10
        assert not found.publisher_late


def test_c82_the_clock_went_ahead_and_the_next_beat_says_that_the_publisher_lives():
    place.beat("p", 0, 0)
    PublisherHeartbeat.objects.update(beat_at=F("beat_at") - STEP)
    assert selectors.lag().publisher_late
    place.beat("p", 0, 0)
    assert not selectors.lag().publisher_late


def test_c82_what_waits_since_the_future_has_no_negative_age_and_is_told():
    run = new_id()
    write(run, "a")
    Stream.objects.update(ready_at=F("ready_at") + STEP, lease_token=uuid4(), leased_until=Now() + STEP)
    Destination.objects.create(name=selectors.current_destination(), failures=1, open_until=Now() + STEP)
    found, of_run = selectors.lag(), selectors.stream_lag(run)
    assert of_run is not None
    ages = [found.oldest_age_seconds, of_run.oldest_age_seconds, selectors.worst_streams()[0]["oldest_age_seconds"]]
    assert ages == [0, 0, 0]
    assert (found.streams_unowned, found.circuit_open_seconds) == (1, None)
    assert (project_lag("demo").oldest_age_seconds, project_lag("demo").circuit_open_seconds) == (0, None)


def test_c82_a_job_that_succeeded_in_the_future_is_overdue_until_any_job_succeeds():
    PeriodicJob.objects.create(name="silent", interval_seconds=5.0, last_success_at=Now() + STEP)
    assert [job.overdue for job in jobs.all_jobs()] == [True]
    jobs.succeeded("other", 5.0)
    assert {job.name: job.overdue for job in jobs.all_jobs()} == {"silent": False, "other": False}
    PeriodicJob.objects.filter(name="silent").update(last_success_at=F("last_success_at") - timedelta(seconds=20))
    assert [job.name for job in jobs.all_jobs() if job.overdue] == ["silent"]

"""The home page beyond its queues: the last hour, every service, and what the event store could not take."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection
from django.db.models.functions import Now
from django.urls import reverse

from kernel_project import dashboard, services_health
from kernel_project.primitives.clock import now
from outbox import lag_history
from outbox.models import LagSample
from outbox.tasks import sample_lag
from temporality.models import Conflict, Pending, Projector
from tests import console
from tests.waiting import until_sync

pytestmark = pytest.mark.django_db(databases=["default", "temporality"])


def home(*permissions: str) -> str:
    client = console.logged_in(console.viewer("vera", *permissions))
    return client.get(reverse("admin:index")).content.decode()


def test_a_sample_is_drawn_and_an_old_one_is_not():
    console.waiting_run()
    sample_lag()
    LagSample.objects.create(slot=500, at=now() - timedelta(hours=2), pending=9, oldest_seconds=9.0)
    [sample] = lag_history.last_hour()
    assert sample.pending > 0
    assert "<polyline" in home()


def test_samples_overwrite_those_of_an_hour_ago():
    """The ring: after more than an hour of samples there are as many rows as slots."""
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO outbox_lagsample SELECT n, now() - interval '2 h', 1, 1 FROM generate_series(0, %s) n",
            [lag_history.SLOTS - 1],
        )
    lag_history.note()
    assert LagSample.objects.count() == lag_history.SLOTS
    assert len(lag_history.last_hour()) == 1


def test_every_service_has_a_word(monkeypatch):
    def broken() -> str:
        raise ConnectionError

    pulse = services_health.Pulse({"Temporal": broken, "Redis": lambda: "ok"})
    monkeypatch.setattr(services_health, "outside", pulse)
    until_sync(lambda: "is being asked" not in pulse.words().values(), 10, pulse.words)
    words = {number.title: number.value for number in dashboard._health().numbers}
    assert words["PostgreSQL"] == words["Redis"] == "ok"
    assert words["Temporal"] == "does not answer"
    assert words["Publisher"] == "publishes nothing"
    assert words["Workers"] == "none has reported"
    assert {"Event store", "Periodic jobs"} <= words.keys()


def test_a_service_that_stays_silent_does_not_hold_up_the_page():
    import threading
    from time import monotonic

    free = threading.Event()
    pulse = services_health.Pulse({"Temporal": lambda: "ok" if free.wait(30) else "late"})
    began = monotonic()
    assert pulse.words() == {"Temporal": "is being asked"}
    assert monotonic() - began < 5
    free.set()
    until_sync(lambda: pulse.words() == {"Temporal": "ok"}, 10, pulse.words)


def test_conflicts_and_quarantine_stand_on_the_page_with_their_lists():
    live = Projector.objects.filter(state=Projector.State.LIVE).values_list("generation", flat=True).first()
    Pending.objects.create(
        generation=live or 0, position=1, source_id="s", event_id="e", type="knowledge.x", state="quarantined",
        received_at=Now(),
    )  # fmt: skip
    Conflict.objects.create(
        kind="content",
        position=1,
        source_id="s",
        event_id="e",
        content_hash=b"1",
        content="{}",
        first_seen_at=Now(),
        last_seen_at=Now(),
    )
    numbers = {number.title: number for number in dashboard._store().numbers}
    assert (numbers["conflicts"].value, numbers["conflicts"].tone) == ("1", "bad")
    assert numbers["quarantined"].link.endswith("?state=quarantined")
    assert "Taken in by the event store" in home()


def test_every_number_of_the_page_leads_somewhere():
    client = console.logged_in(console.person("root", superuser=True))
    links = {number.link for card in dashboard.cards(console.viewer()).values() for number in card.numbers}
    links.discard("/readyz")
    assert len(links) > 12
    for link in links:
        assert client.get(link).status_code == 200, link

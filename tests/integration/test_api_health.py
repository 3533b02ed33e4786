"""Health: the process, and what it needs, each by name."""

from __future__ import annotations

import pytest
from django.test import Client

from outbox.models import PublisherHeartbeat

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("temporal_server", "valkey"),
]


@pytest.fixture
def client() -> Client:
    return Client(raise_request_exception=False)


@pytest.fixture
def publisher() -> None:
    PublisherHeartbeat.objects.create(publisher="test")


def test_the_process_is_healthy_whatever_it_needs(client, valkey):
    with valkey.stopped():
        answer = client.get("/healthz")
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


def test_ready_when_everything_answers(client, publisher):
    answer = client.get("/readyz")
    assert answer.json()["checks"] == {
        "database": "ok",
        "temporal": "ok",
        "redis": "ok",
        "publisher": "ok",
        "jobs": "ok",
    }
    assert answer.status_code == 200


def test_a_publisher_that_never_ran_is_named(client):
    answer = client.get("/readyz")
    assert (answer.status_code, answer.json()["checks"]["publisher"]) == (503, "has never run")


def test_a_dead_broker_is_named_and_the_others_are_still_told(client, publisher, valkey):
    with valkey.stopped():
        answer = client.get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["checks"] == {
        "database": "ok", "temporal": "ok", "redis": "does not answer (ConnectionError)", "publisher": "ok",
        "jobs": "ok",
    }  # fmt: skip


def test_a_dead_engine_is_named(client, publisher, temporal_server):
    with temporal_server.stopped():
        answer = client.get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["checks"]["temporal"].startswith("does not answer")


def test_only_reading_is_possible(client):
    assert client.post("/healthz").status_code == 405
    assert client.post("/readyz").status_code == 405

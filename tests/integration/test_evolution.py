"""R3, R4. A newer producer and an older event store, and the other way round: nothing is lost, all is read later."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from kernel_project.devstack.postgres import Postgres
from outbox import services
from outbox.contracts import Actor, NewEvent
from temporality import catalogue, upcasting
from temporality.catalogue import Outcome
from temporality.projection import projector
from tests.temporality_server import EventStore, put, running

OF_TOMORROW = {"of_tomorrow": {"n": [1, None, 10**30], "text": "ü"}}
# What today's store has learnt since the version before; that one knew fewer members, too.
LEARNT = ("run.message", "hold.placed", "knowledge.used")


@pytest.fixture(scope="module")
def store(postgres: Postgres) -> Iterator[EventStore]:
    with running(postgres) as store:
        yield store


@pytest.fixture
def project() -> str:
    return uuid.uuid4().hex


@pytest.fixture
def producer(project: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Events as the kernel writes them."""
    run = uuid.uuid4()
    monkeypatch.setattr(services, "source_id", lambda: f"source-of-{project}")

    def tell(kind: str, sequence: int, **data: Any) -> str:
        event = NewEvent(run, project, kind, f"{kind}-{sequence}", data | OF_TOMORROW, Actor(id="a", type="agent"))
        return services.envelope(event).replace(f'"{services.SEQUENCE_MARK}"', str(sequence))

    return tell


def taken(store: EventStore, texts: list[str]) -> None:
    """Ingest and project in this process, with the catalogue as it is here."""
    with psycopg.connect(store.database_url, autocommit=True) as connection:
        put(connection, *texts)
        project_all(connection)


def project_all(connection: psycopg.Connection[Any]) -> None:
    catalogue.fingerprint.cache_clear()
    generation = projector.live_generation(connection)
    while projector.advance(connection, generation).more:
        pass
    catalogue.fingerprint.cache_clear()


def kept(store: EventStore, project: str) -> list[dict[str, Any]]:
    answer = store.get("/v1/observations/events", store.token(project), project=project, after_position=0, limit=100)
    return [{name: one[name] for name in one if name != "received_at"} for one in answer.json["events"]]


def test_a_newer_producer_and_an_older_store(store, project, producer, monkeypatch):
    texts = [
        producer("run.started", 1), producer("tool.started", 2, operation_id="o"), producer("run.message", 3, number=1),
        producer("tool.completed", 4, operation_id="o"), producer("hold.placed", 5, scope="run"),
        producer("knowledge.used", 6, knowledge_id="k"), producer("run.dreamt", 7), producer("tool.started.v2", 8),
    ]  # fmt: skip
    store.stop()
    older = {kind: Outcome if kind.startswith("tool.") else model for kind, model in catalogue.TYPES.items()}
    with monkeypatch.context() as patch:
        patch.setattr(catalogue, "TYPES", {kind: model for kind, model in older.items() if kind not in LEARNT})
        taken(store, texts)
    with psycopg.connect(store.database_url, autocommit=True) as connection:
        project_all(connection)  # the store is upgraded
    store.start()
    token = store.token(project)
    store.settled(token, project)
    assert [json.loads(text) for text in texts] == kept(store, project), "what it did not understand is as it was told"
    found = store.get("/v1/observations/quarantine", token, project=project).json["quarantine"]
    assert [entry["reason"] for entry in found] == ["version 2 of tool.started is not known"]
    operations = store.get("/v1/observations/operations", token, project=project).json["operations"]
    assert [entry["status"] for entry in operations] == ["succeeded"]


def test_an_older_producer_and_a_newer_store(store, project, producer):
    """Its failures did not say yet whether they had an effect."""
    texts = [
        producer("run.started", 1), producer("tool.started", 2, operation_id="o"),
        producer("tool.failed", 3, operation_id="o"), producer("run.completed", 4, outcome="succeeded"),
    ]  # fmt: skip
    store.stop()
    taken(store, texts)
    store.start()
    token = store.token(project)
    store.settled(token, project)
    [operation] = store.get("/v1/observations/operations", token, project=project).json["operations"]
    assert (operation["status"], operation["effect"]) == ("uncertain", "uncertain")
    assert [json.loads(text) for text in texts] == kept(store, project), "an upcaster changes no event"


@pytest.mark.parametrize("kind", sorted(upcasting.UPCASTERS))
def test_an_upcaster_adds_only_what_is_absent_and_is_done_once(kind):
    for data in ({}, OF_TOMORROW, {"effect": "none"}, {"effect": "occurred"} | OF_TOMORROW):
        read = upcasting.read(kind, data)
        assert read | data == read
        assert upcasting.read(kind, read) == read
        assert catalogue.quarantine_reason(kind, dict(read)) == ""

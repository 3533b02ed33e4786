"""O5, T50, T54. Whatever the order, batching, repetition and interruption of arrival: the projection is the same."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator, Sequence
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from kernel_project.devstack.postgres import Postgres
from temporality.envelope import Incoming, decode_batch, read_event
from temporality.inbox import Inbox
from temporality.projection import projector, rebuild
from temporality.store import Store
from tests.temporality_server import EventStore, event, migrated

TYPES = [
    "run.started", "run.completed", "tool.started", "tool.completed", "tool.failed", "operation.reconciled",
    "approval.requested", "approval.granted", "knowledge.proposed", "knowledge.confirmed", "knowledge.challenged",
    "knowledge.corrected", "knowledge.linked", "knowledge.used", "knowledge.forgotten", "tool.started.v2", "test.note",
]  # fmt: skip
TABLES = ", ".join(f"temporality_{name}" for name in ("event", "conflict", "item", "progress", "pending", "edge"))
STEPS_MAX = 1_000  # of one projection in a test
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)  # shrinking would take longer than the test


@pytest.fixture(scope="module")
def store(postgres: Postgres) -> EventStore:
    return migrated(postgres)


@pytest.fixture(scope="module")
def connection(store: EventStore) -> Iterator[projector.Connection]:
    with psycopg.connect(store.database_url, autocommit=True) as connection:
        yield connection


@st.composite
def histories(draw: st.DrawFn) -> list[Incoming]:
    """Events of two projects with every kind of causal edge: earlier, later, missing, to itself, circular, foreign."""
    count = draw(st.integers(1, 20))
    return [read_event(decode_batch(json.dumps({"events": [one(draw, n, count)]}).encode())[0]) for n in range(count)]


def one(draw: st.DrawFn, number: int, count: int) -> dict[str, Any]:
    run = f"r-{draw(st.integers(0, 1))}"
    parents = draw(st.lists(st.integers(0, count).map(lambda n: f"e-{n}"), max_size=2))
    data: dict[str, Any] = {
        "caused_by": parents,
        "operation_id": f"o-{draw(st.integers(0, 2))}",
        "knowledge_id": f"k-{draw(st.integers(0, 2))}",
        "proposition": f"proposition {draw(st.integers(0, 1))}",
        "target_id": "k-0",
        "relation": "supports",
        "effect": draw(st.sampled_from(["none", "occurred"])),
    }
    if draw(st.booleans()):
        data["sequence"] = number + 1
    project = draw(st.sampled_from(["p", "p", "p", "q"]))
    minute = draw(st.integers(0, 59))
    return event(
        project,
        draw(st.sampled_from(TYPES)),
        "the-source",
        f"e-{number}",
        context={"run": run},
        data=data,
        occurred_at=f"2025-03-01T10:{minute:02}:00Z",
    )


def forget_everything(connection: projector.Connection) -> None:
    connection.execute(f"TRUNCATE {TABLES}")
    connection.execute("UPDATE temporality_projector SET position = 0; UPDATE temporality_head SET position = 0")


async def arrive(store: EventStore, batches: Sequence[Sequence[Incoming]]) -> None:
    pools = Store(store.database_url, 4)
    await pools.open()
    inbox = Inbox(pools)
    inbox.start()
    try:
        await asyncio.gather(*(inbox.add(batch) for batch in batches))
    finally:
        await inbox.stop()
        await pools.close()


def project_all(connection: projector.Connection, events_max: int, dice: random.Random | None = None) -> None:
    """Project to the end; with dice, in the middle of which the projector dies again and again before it can commit."""
    generation = projector.live_generation(connection)
    for _ in range(STEPS_MAX):
        if dice and dice.random() < 0.3:
            with connection.transaction(force_rollback=True):
                projector.advance(connection, generation, events_max=events_max)
        if not projector.advance(connection, generation, events_max=events_max).more:
            return
    raise AssertionError("the projection does not come to an end")


def digest_after(
    store: EventStore, connection: projector.Connection, batches: list[list[Incoming]], events_max: int
) -> str:
    forget_everything(connection)
    asyncio.run(arrive(store, batches))
    project_all(connection, events_max, random.Random(events_max))
    return rebuild.live_digest(connection)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, phases=PHASES)
@given(history=histories(), seed=st.integers(0, 2**32))
def test_any_arrival_gives_the_same_digest(
    store: EventStore, connection: projector.Connection, history: list[Incoming], seed: int
) -> None:
    expected = digest_after(store, connection, [history], 1_000)
    dice = random.Random(seed)
    shuffled = dice.sample(history, len(history)) + dice.choices(history, k=5)
    size = dice.randint(1, 6)
    batches = [shuffled[start : start + size] for start in range(0, len(shuffled), size)]
    assert digest_after(store, connection, batches, dice.randint(1, 7)) == expected
    rebuilt = rebuild.rebuild(connection)
    assert (rebuilt.digest_before, rebuilt.digest_after) == (expected, expected)
    rebuilt = rebuild.rebuild(connection, project="p")
    assert rebuilt.is_equal
    assert rebuild.live_digest(connection) == expected


def test_t54_a_rebuild_of_an_empty_store_ends_and_twice_gives_the_same(
    store: EventStore, connection: projector.Connection
) -> None:
    forget_everything(connection)
    first, second = rebuild.rebuild(connection), rebuild.rebuild(connection)
    assert (first.events, first.is_equal) == (0, True)
    assert first.digest_after == second.digest_after

"""T20. PostgreSQL is killed and started again at every step of the publisher, which goes on by itself.

Nothing is lost, changed, reordered or left unaccounted for, whatever was half done.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.db import Error, connection

from kernel_project.devstack.postgres import Postgres
from kernel_project.primitives.ids import new_id
from kernel_project.primitives.sql import load
from outbox import parked
from outbox import publisher as module
from outbox.contracts import Actor
from outbox.models import Event, ParkedEvent, Stream
from outbox.publisher import Publisher
from tests.fakes.event_store import FakeEventStore, fake_event_store
from tests.outbox_scene import numbered, pending, publishing, unaccounted, write
from tests.outbox_victim import then
from tests.waiting import until_sync

pytestmark = pytest.mark.django_db(transaction=True)
HEAL_SECONDS = 30.0
RUN_SECONDS = 60.0
OUTBOX = Path(module.__file__).parent
REFUSED = {"status": "rejected", "error": "data.n is no number"}
Around = Callable[..., Any]  # as `connection.execute_wrapper` takes it

# The publisher's statements by a part of their text: that of their file, or of the ORM's a column that they alone set.
STATEMENTS = {
    "the place": load(OUTBOX, "take_place"),
    "the return of leases": load(OUTBOX, "give_back_leases"),
    "the heartbeat": load(OUTBOX, "beat"),
    "the renewal": 'UPDATE "outbox_destination" SET "worker_until" = ',
    "the claim": load(OUTBOX, "claim"),
    "the read": load(OUTBOX, "read"),
    "the advance": load(OUTBOX, "advance"),
    "the note": '"last_success_at" = ',
    "the look for replays": load(OUTBOX, "queued_replays"),
}
STEPS = [f"{when} {name}" for name in STATEMENTS for when in ("before", "after")]


@pytest.fixture
def store() -> Iterator[FakeEventStore]:
    with fake_event_store() as fake:
        yield fake


@pytest.fixture
def publisher(store: FakeEventStore) -> Iterator[Publisher]:
    with publishing(store) as made:
        yield made


class Restart:
    """PostgreSQL is killed and started again, the first time this is called."""

    def __init__(self, postgres: Postgres) -> None:
        self._postgres, self.done = postgres, False

    def __call__(self, *_: object) -> None:
        if not self.done:
            self._postgres.kill()
            self._postgres.start()
            self.done = True

    def around(self, statement: str, when: str, hint: object = None) -> Around:
        """Before or after such a statement; `hint`: of claims, only with this one."""

        def wrapper(execute: Around, sql: str, params: Any, many: bool, context: Any) -> Any:
            meant = statement in sql and (hint is None or params["hint"] == hint)
            if meant and when == "before":
                self()
            found = execute(sql, params, many, context)
            if meant and when == "after":
                self()
            return found

        return wrapper


@pytest.fixture
def restart(postgres: Postgres) -> Iterator[Restart]:
    yield Restart(postgres)
    connection.close()  # ours was cut, too


@pytest.mark.parametrize("step", STEPS)
def test_t20_around_each_statement(step: str, store: FakeEventStore, publisher: Publisher, restart: Restart):
    when, _, name = step.partition(" ")
    everything_arrives(store, publisher, restart, restart.around(STATEMENTS[name], when))


@pytest.mark.parametrize("when", ["before", "after"])
def test_t20_in_the_sweep(when: str, store: FakeEventStore, publisher: Publisher, restart: Restart, monkeypatch):
    """A look without the hint, once there is one."""
    monkeypatch.setattr(module, "SWEEP_SECONDS", 0.2)
    write(new_id(), "a")
    publisher.pass_once()
    everything_arrives(store, publisher, restart, restart.around(STATEMENTS["the claim"], when, module.LONG_AGO))


def test_t20_while_a_request_is_on_its_way(store: FakeEventStore, publisher: Publisher, restart: Restart):
    take = store.take
    store.answer = lambda events: (restart(), take(events))[1]
    everything_arrives(store, publisher, restart)


def test_t20_between_the_answer_and_the_advance(store: FakeEventStore, publisher: Publisher, restart, monkeypatch):
    monkeypatch.setattr(publisher.sink, "deliver", then(publisher.sink.deliver, restart))
    everything_arrives(store, publisher, restart)


def test_t20_between_the_advance_and_its_commit(store: FakeEventStore, publisher: Publisher, restart, monkeypatch):
    monkeypatch.setattr(parked, "park", then(parked.park, restart))
    everything_arrives(store, publisher, restart)


def test_t20_after_the_commit_of_the_advance(store: FakeEventStore, publisher: Publisher, restart, monkeypatch):
    monkeypatch.setattr(publisher, "_advance", then(publisher._advance, restart))
    everything_arrives(store, publisher, restart)


def test_t20_between_the_answer_for_a_replay_and_its_row(store, publisher: Publisher, restart: Restart, monkeypatch):
    settle = parked._settle_replay
    monkeypatch.setattr(parked, "_settle_replay", lambda *given: (restart(), settle(*given))[1])
    run = new_id()
    write(run, "a")
    store.judge = lambda _event: REFUSED
    publisher.pass_once()
    store.judge = lambda _event: None
    parked.replay(Event.objects.get().event_id, by=Actor(id="ann", type="human"), note="fixed")
    everything_arrives(store, publisher, restart, out_of_order=[str(run)])
    assert [row.state for row in ParkedEvent.objects.all()] == ["replayed"]


def everything_arrives(
    store: FakeEventStore, publisher: Publisher, restart: Restart, *around: Around, out_of_order: Sequence[str] = ()
) -> None:
    """Before the restart and after it, with nobody's help. Only a replay comes out of the order of its run."""
    runs = [new_id() for _ in range(3)]
    for run in runs:
        write(run, *numbered(5))
    with at_work(publisher, *around):
        until_sync(lambda: restart.done and nothing_waits(), HEAL_SECONDS)
        write(runs[0], "afterwards")
        until_sync(nothing_waits, HEAL_SECONDS)
    envelopes = {str(event.event_id): event.envelope.encode() for event in Event.objects.all()}
    assert (pending(), unaccounted(), store.changed, store.order_breaks()) == (0, 0, [], [*out_of_order])
    assert store.kept.keys() == envelopes.keys()
    assert all(envelope in b"".join(store.bodies) for envelope in envelopes.values())
    assert not Stream.objects.filter(lease_token__isnull=False).exists()


@contextmanager
def at_work(publisher: Publisher, *around: Around) -> Iterator[None]:
    def work() -> None:
        connection.execute_wrappers.extend(around)
        publisher.run(RUN_SECONDS)
        connection.close()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        publisher.stop()
        thread.join(HEAL_SECONDS)
    assert not thread.is_alive()


def nothing_waits() -> bool:
    try:
        return pending() == 0 and not ParkedEvent.objects.filter(state="queued").exists()
    except Error:  # it was our connection
        connection.close()
        return False

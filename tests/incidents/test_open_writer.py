"""T19, T41: a writer whose transaction stays open delays its own run only, and costs no acknowledgement."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from uuid import UUID

import pytest
from django.db import connection, transaction
from django.db.models.functions import Now

from kernel_project.primitives.ids import new_id
from outbox import place
from outbox.models import Destination, Stream
from outbox.publisher import Publisher
from tests.incidents.test_claim_and_lease import Recording
from tests.outbox_scene import leases_expire, pending, write

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(60)]
WAIT_SECONDS = 20.0


@pytest.fixture
def sink() -> Recording:
    made = Recording()
    Destination.objects.create(name=made.name)
    return made


@pytest.fixture
def publisher(sink: Recording) -> Iterator[Publisher]:
    made = Publisher(sink, "one")
    yield made
    made.close()


@pytest.fixture(autouse=True)
def nothing_waits_for_a_lock() -> Iterator[None]:
    """What would wait for the open writer fails at once."""
    with connection.cursor() as cursor:
        cursor.execute("SET lock_timeout = '1s'")
        yield
        cursor.execute("RESET lock_timeout")


@contextmanager
def open_writer(run: UUID) -> Iterator[None]:
    """Somebody appended to the run and does not commit; at the end of the block it does."""
    written, go = threading.Event(), threading.Event()

    def hold() -> None:
        with transaction.atomic():
            write(run, "late")
            written.set()
            go.wait(WAIT_SECONDS)
        connection.close()

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert written.wait(WAIT_SECONDS)
        yield
    finally:
        go.set()
        thread.join(WAIT_SECONDS)


def test_an_acknowledgement_that_meets_an_open_writer_is_written_down_when_it_can_be(sink, publisher):
    busy, free = new_id(), new_id()
    write(busy, "a")
    write(free, "a")
    writers: list[object] = []

    def meanwhile() -> None:
        sink.on_delivery = lambda: None
        writer = open_writer(busy)
        writer.__enter__()
        writers.append(writer)

    sink.on_delivery = meanwhile
    began = time.monotonic()
    assert publisher.pass_once() == 1
    assert Stream.objects.get(run_id=free).published == 1
    write(free, "b")
    assert publisher.pass_once() == 1
    assert time.monotonic() - began < WAIT_SECONDS / 2
    writers[0].__exit__(None, None, None)
    publisher.drain()
    assert (pending(), publisher.published, publisher.fenced) == (0, 4, 0)
    assert sorted(sink.sent) == sorted([(str(busy), 1), (str(busy), 2), (str(free), 1), (str(free), 2)])


def test_an_acknowledgement_that_waits_longer_than_its_lease_is_fenced_and_sent_again(sink, publisher):
    run = new_id()
    write(run, "a")
    token, lanes = publisher._claim()
    publisher._read(lanes)
    publisher._send(lanes, float("inf"))
    with open_writer(run):
        assert publisher._advance(token, lanes) == 0
        assert publisher.fenced == 0
    leases_expire()
    assert publisher._advance(token, []) == 0
    assert publisher.fenced == 1
    publisher.drain()
    assert pending() == 0
    assert sink.sent == [(str(run), 1), (str(run), 1), (str(run), 2)]


def test_an_open_writer_does_not_keep_the_next_publisher_from_the_place(sink, publisher):
    busy, free = new_id(), new_id()
    write(busy, "a")
    write(free, "a")
    assert place.take(sink.name, publisher.place)
    publisher._claim()  # and then it was killed
    Destination.objects.update(worker_until=Now() - timedelta(seconds=1))
    other = Publisher(sink, "other")
    with open_writer(busy):
        assert place.take(sink.name, other.place)
        other.drain()
        assert Stream.objects.get(run_id=free).published == 1
    leases_expire()
    other.drain()
    other.close()
    assert pending() == 0

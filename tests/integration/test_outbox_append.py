"""Appending to the journal: gapless, ordered by commit, each happening once, all or nothing with its transaction."""

from __future__ import annotations

import json
import threading
from uuid import UUID

import pytest
from django.db import connection, transaction
from django.db.transaction import TransactionManagementError

from kernel_project.primitives.clock import now
from kernel_project.primitives.errors import Invalid
from kernel_project.primitives.ids import new_id
from outbox import services
from outbox.contracts import NewEvent
from outbox.models import Event, Stream

pytestmark = pytest.mark.django_db(transaction=True)


def told(run_id: UUID, subject: str, **data: object) -> NewEvent:
    return NewEvent(run_id=run_id, project="demo", type="test.happened", subject=subject, data=data)


def append(*events: NewEvent) -> dict[UUID, int]:
    with transaction.atomic():
        return services.append(events)


def sequences(run_id: UUID) -> list[int]:
    return list(Event.objects.filter(run_id=run_id).order_by("sequence").values_list("sequence", flat=True))


def test_a_run_counts_from_one_without_gaps():
    run = new_id()
    append(told(run, "a"), told(run, "b"))
    append(told(run, "c"))
    assert sequences(run) == [1, 2, 3]
    assert Stream.objects.get(run_id=run).head == 3


def test_the_envelope_carries_its_sequence_and_is_canonical():
    run = new_id()
    append(told(run, "a", text='"sequence":1 and \\ and é'))
    envelope = json.loads(Event.objects.get(run_id=run).envelope)
    assert envelope["data"]["sequence"] == 1
    assert envelope["data"]["text"] == '"sequence":1 and \\ and é'
    assert envelope["schema"] == "temporality.event/1"


def test_several_runs_in_one_append_are_numbered_each_for_itself():
    one, other = new_id(), new_id()
    append(told(one, "a"), told(other, "a"), told(one, "b"))
    assert (sequences(one), sequences(other)) == ([1, 2], [1])


def test_the_same_happening_told_twice_is_one_event():
    run = new_id()
    first = append(told(run, "a", n=1))
    again = append(told(run, "a", n=1), told(run, "b"))
    assert sequences(run) == [1, 2]
    assert again[told(run, "a").event_id] == first[told(run, "a").event_id] == 1


def test_the_same_id_with_another_content_is_refused():
    run = new_id()
    append(told(run, "a", n=1))
    with pytest.raises(services.EventMismatch):
        append(told(run, "a", n=2))


def test_an_event_that_is_too_large_in_bytes_is_refused_with_a_sentence():
    """Letters of three bytes each: fewer characters than the limit, more bytes."""
    run = new_id()
    large = NewEvent(run_id=run, project="demo", type="t", subject="1", data={"text": "\u20ac" * 100_000})
    with pytest.raises(Invalid, match=r"300\d{3} bytes is larger than 262144"), transaction.atomic():
        services.append([large])
    assert not Event.objects.filter(run_id=run).exists()


def test_a_rolled_back_append_gives_its_number_back():
    run = new_id()
    append(told(run, "a"))
    with transaction.atomic():
        services.append([told(run, "lost")])
        transaction.set_rollback(True)
    append(told(run, "b"))
    assert sequences(run) == [1, 2]


def test_outside_a_transaction_it_refuses_to_run():
    with pytest.raises(TransactionManagementError):
        services.append([told(new_id(), "a")])


def test_first_event_of_a_run_by_two_transactions_at_once_gets_one_and_two():
    """T08."""
    run, gate = new_id(), threading.Barrier(2)

    def write(subject: str) -> None:
        with transaction.atomic():
            gate.wait(10)
            services.append([told(run, subject)])
        connection.close()

    threads = [threading.Thread(target=write, args=[name]) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert sequences(run) == [1, 2]


def test_an_event_can_be_neither_changed_nor_deleted():
    run = new_id()
    append(told(run, "a"))
    for change in (lambda rows: rows.update(type="other"), lambda rows: rows.delete()):
        with pytest.raises(Exception, match="immutable"), transaction.atomic():
            change(Event.objects.filter(run_id=run))
    assert Event.objects.get(run_id=run).type == "test.happened"


@pytest.mark.parametrize("table", ["outbox_event", "the month"])
def test_the_journal_cannot_be_emptied(table):
    run = new_id()
    append(told(run, "a"))
    month = f"outbox_event_{now():%Y_%m}"
    with pytest.raises(Exception, match="immutable"), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"TRUNCATE {month if table == 'the month' else table} CASCADE")
    assert Event.objects.filter(run_id=run).exists()


def test_what_a_caught_up_stream_already_has_leaves_it_caught_up():
    run = new_id()
    append(told(run, "a"), told(run, "b"))
    Stream.objects.filter(run_id=run).update(published=2, ready_at=None)
    append(told(run, "b"), told(run, "a"))
    stream = Stream.objects.get(run_id=run)
    assert (stream.head, stream.ready_at) == (2, None)


def test_the_same_event_by_two_transactions_at_once_is_one_event():
    run, gate, numbers = new_id(), threading.Barrier(2), []

    def write() -> None:
        with transaction.atomic():
            gate.wait(10)
            numbers.extend(services.append([told(run, "same")]).values())
        connection.close()

    threads = [threading.Thread(target=write) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert (numbers, sequences(run)) == ([1, 1], [1])

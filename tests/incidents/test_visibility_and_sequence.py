"""T01 to T08 of the incidents: what is committed is delivered, numbered without gaps, and a hole is an alarm."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

import pytest
from django.conf import settings
from django.db import connection, transaction
from django.db.models.functions import Now

from kernel_project.primitives.errors import Conflict, Invalid
from kernel_project.primitives.ids import new_id
from outbox import selectors, services, source
from outbox.alarms import alarms
from outbox.models import Destination, Event, SourceEpoch, Stream
from outbox.publisher import NullSink, Publisher
from outbox.seen import contiguous
from temporality.contracts import RunProgress
from tests.outbox_scene import leases_expire, numbered, pending, write

pytestmark = pytest.mark.django_db(transaction=True)
WAIT_SECONDS = 20


@pytest.fixture
def publisher() -> Iterator[Publisher]:
    made = Publisher(NullSink())
    Destination.objects.create(name=made.sink.name)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def forget_epochs() -> Iterator[None]:
    source.forget()
    yield
    source.forget()


@contextmanager
def elsewhere(work: Callable[[], object]) -> Iterator[threading.Event]:
    """`work` in another session, in a transaction that stays open until the event is set or the block ends."""
    done, go = threading.Event(), threading.Event()

    def hold() -> None:
        try:
            with transaction.atomic():
                work()
                done.set()
                go.wait(WAIT_SECONDS)
        finally:
            connection.close()

    thread = threading.Thread(target=hold)
    thread.start()
    assert done.wait(WAIT_SECONDS)
    try:
        yield go
    finally:
        go.set()
        thread.join(WAIT_SECONDS)


def published(run: UUID) -> int:
    return Stream.objects.get(run_id=run).published


def test_t01_a_late_committer_of_the_same_run_is_waited_for_and_numbered_last(publisher):
    """C45. Two writers on one run: the second one cannot commit a higher number before the first one has committed."""
    run = new_id()
    write(run, "first")
    publisher.drain()
    with elsewhere(lambda: write(run, "slow")):
        publisher.drain()
        assert published(run) == 1
    write(run, "after")
    publisher.drain()
    assert published(run) == 3
    assert [json.loads(e)["data"]["sequence"] for e in envelopes(run)] == [1, 2, 3]


def test_t01_the_lag_is_not_zero_while_a_committed_event_waits(publisher):
    early, late = new_id(), new_id()
    with elsewhere(lambda: write(late, "late")) as go:
        write(early, "early")
        publisher.drain()
        go.set()
    assert selectors.lag().pending == 1
    publisher.drain()
    assert (published(late), selectors.lag().pending) == (1, 0)


def test_t02_a_commit_between_claim_and_read_is_neither_lost_nor_skipped(publisher, monkeypatch):
    """The claim says up to where; what is committed after it belongs to the next round."""
    run = new_id()
    write(run, "a")
    read = publisher._read

    def commit_in_between(lanes):
        write(run, "b")
        read(lanes)

    monkeypatch.setattr(publisher, "_read", commit_in_between)
    publisher.pass_once()
    monkeypatch.undo()
    stream = Stream.objects.get(run_id=run)
    assert (stream.published, stream.head, stream.ready_at is not None) == (1, 2, True)
    publisher.drain()
    assert published(run) == 2


def test_t02_a_commit_between_read_and_advance_leaves_the_stream_ready(publisher, monkeypatch):
    run = new_id()
    write(run, "a")
    advance = publisher._advance

    def commit_in_between(token, lanes):
        write(run, "b")
        return advance(token, lanes)

    monkeypatch.setattr(publisher, "_advance", commit_in_between)
    publisher.pass_once()
    monkeypatch.undo()
    assert selectors.lag().pending == 1
    publisher.drain()
    assert pending() == 0


def test_t04_nothing_that_is_stored_depends_on_transaction_ids():
    """A dump is restored into a cluster whose transaction ids are small: no column, and no query, knows any."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM information_schema.columns WHERE table_name LIKE 'outbox%%' AND udt_name LIKE 'xid%%'"
        )
        assert cursor.fetchone() == (0,)
    folder = Path(settings.BASE_DIR) / "outbox"
    texts = [path.read_text() for path in folder.rglob("*.sql")] + [path.read_text() for path in folder.rglob("*.py")]
    assert not [text for text in texts if re.search(r"\bxmin\b(?!')|txid_|pg_current_xact|pg_snapshot", text)]


def test_t04_what_was_leased_when_the_dump_was_made_drains_after_the_restore(publisher):
    run = new_id()
    write(run, *numbered(3))
    publisher._claim()
    leases_expire()  # the backup is older than any lease
    publisher.drain()
    assert published(run) == 3


def test_t05_after_a_restore_new_events_are_told_under_a_new_source():
    run = new_id()
    write(run, "before")
    epoch = source.raise_epoch(by="ann", note="restored the backup of Monday")
    write(run, "after")
    names = [json.loads(text)["source"]["id"] for text in envelopes(run)]
    assert names == [settings.KERNEL_SOURCE_ID, f"{settings.KERNEL_SOURCE_ID}~{epoch.name}"]
    assert source.source_ids() == names


def test_t05_a_happening_told_before_the_restore_is_the_same_one_after_it():
    run = new_id()
    write(run, "a")
    source.raise_epoch(by="ann", note="restored")
    write(run, "a")
    assert Event.objects.filter(run_id=run).count() == 1


def test_t05_each_restore_has_an_epoch_of_its_own_even_of_the_same_backup():
    """The number is the database's time: a counter in the database would come back with the backup."""
    first = source.raise_epoch(by="ann", note="restored")
    SourceEpoch.objects.all().delete()  # the second restore undoes the first one's row
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_sleep(1.1)")
    assert source.raise_epoch(by="ann", note="restored again").name > first.name


def test_t05_an_epoch_that_would_not_be_newer_is_refused():
    SourceEpoch.objects.create(name="99990101000000", raised_by="x", note="a clock was wrong")
    with pytest.raises(Conflict, match="database clock"):
        source.raise_epoch(by="ann", note="restored")


def test_t05_who_raises_the_epoch_says_why():
    with pytest.raises(Invalid):
        source.raise_epoch(by="ann", note=" ")


def test_t05_an_event_store_that_has_more_than_the_journal_is_an_alarm():
    run = new_id()
    write(run, "a")
    Stream.objects.update(published=1, ready_at=None, seen=5, seen_at=Now())
    told = alarms(selectors.lag(), selectors.recent_delivery(), None)
    assert any("restored from a backup" in sentence for sentence in told)


@pytest.mark.parametrize(
    ("told", "reach"),
    [
        ([(5, 5, 5)], 5),  # one name, all there: contiguous, highest, count
        ([(3, 5, 4)], 3),  # a gap
        ([(40, 40, 40), (0, 45, 5)], 45),  # the new name goes on where the old one ends
        ([(60, 60, 60), (0, 45, 5)], 45),  # the old name has what the restore undid
        ([(40, 40, 40), (0, 45, 3)], 40),  # of the new name something is missing
        ([(0, 0, 0), (0, 45, 5)], 0),  # the old name has nothing
        ([(40, 40, 40), (0, 0, 0)], 40),
        ([(0, 0, 0), (7, 7, 7)], 7),  # a run that began after the restore
    ],
)
def test_t05_what_the_event_store_has_is_added_up_over_the_names(told, reach):
    rows = [RunProgress(source_id="s", run="r", contiguous=c, highest=h, count=n) for c, h, n in told]
    assert contiguous(rows) == reach


def test_t06_a_number_that_was_rolled_back_is_given_again():
    run = new_id()
    write(run, "a")
    with transaction.atomic():
        write(run, "lost")
        transaction.set_rollback(True)
    write(run, "b")
    assert list(Event.objects.filter(run_id=run).values_list("sequence", flat=True)) == [1, 2]


def test_t06_a_hole_in_the_journal_stops_its_run_and_is_told_and_no_other_waits(publisher):
    broken, whole = new_id(), new_id()
    write(broken, *numbered(5))
    write(whole, *numbered(5))
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL kernel.purge = 'on'")
        Event.objects.filter(run_id=broken, sequence=3)._raw_delete("default")
    publisher.drain()
    publisher.pass_once()
    Stream.objects.update(next_attempt_at=None)
    publisher.drain()
    stream = Stream.objects.get(run_id=broken)
    assert (stream.published, stream.last_error) == (2, "event 3 is missing from the journal")
    assert published(whole) == 5
    assert selectors.lag().unaccounted == 1


def test_t07_two_writers_on_one_run_lock_first_and_number_second():
    run, gate = new_id(), threading.Barrier(8)

    def append(name: str) -> None:
        try:
            gate.wait(WAIT_SECONDS)
            for n in range(10):
                write(run, f"{name}/{n}")
        finally:
            connection.close()

    writers = [threading.Thread(target=append, args=[str(n)]) for n in range(8)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(WAIT_SECONDS)
    assert list(Event.objects.filter(run_id=run).values_list("sequence", flat=True)) == list(range(1, 81))


def test_t07_a_writer_that_dies_after_numbering_leaves_no_gap():
    run = new_id()

    @transaction.atomic
    def die() -> None:
        write(run, "a", "b")
        raise RuntimeError

    with pytest.raises(RuntimeError):
        die()
    write(run, "c")
    assert list(Event.objects.filter(run_id=run).values_list("sequence", flat=True)) == [1]


def test_t08_the_first_event_of_a_run_by_two_transactions_waits_for_the_first_one():
    run = new_id()
    with elsewhere(lambda: write(run, "a")) as go:
        second = threading.Thread(target=lambda: (write(run, "b"), connection.close()))
        second.start()
        go.set()
        second.join(WAIT_SECONDS)
    assert list(Event.objects.filter(run_id=run).values_list("sequence", flat=True)) == [1, 2]


def test_t47_values_that_json_does_not_have_are_refused_when_they_are_told():
    for value in (float("nan"), float("inf"), "\ud800"):
        with pytest.raises(Exception, match=r".+"), transaction.atomic():
            write(new_id(), "a", value=value)
    assert not Event.objects.exists()


def envelopes(run: UUID) -> list[str]:
    return list(Event.objects.filter(run_id=run).order_by("sequence").values_list("envelope", flat=True))


def test_appending_known_and_new_events_in_one_transaction_keeps_the_numbers_whole():
    run = new_id()
    write(run, "a", "b")
    with transaction.atomic():
        told = services.append([event_of(run, name) for name in ("b", "c", "a", "d")])
    assert sorted(told.values()) == [1, 2, 3, 4]
    assert Stream.objects.get(run_id=run).head == 4


def event_of(run: UUID, name: str):
    from outbox.contracts import NewEvent

    return NewEvent(run_id=run, project="demo", type="test.happened", subject=name)

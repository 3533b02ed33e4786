"""T32, T33 and T41 to T57 of the incidents: the tables stay fast, are cut by month, and their metrics cost little."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from django.conf import settings
from django.db import connection, transaction
from django.db.models.functions import Now

from kernel_project import metrics, verify
from kernel_project.primitives.clock import now
from outbox import partitions, retention, selectors
from outbox.alarms import alarms
from outbox.models import Destination, Event, ParkedEvent, Stream
from outbox.publisher import NullSink, Publisher
from outbox.signals import journal_month_expires
from tests.outbox_scene import numbered, pending, write

pytestmark = pytest.mark.django_db(transaction=True)
WAIT_SECONDS = 20
OLD = datetime(2020, 5, 1, tzinfo=UTC)
TODAY = datetime(2021, 6, 15, tzinfo=UTC)


@pytest.fixture
def publisher() -> Iterator[Publisher]:
    made = Publisher(NullSink())
    Destination.objects.create(name=made.sink.name)
    yield made
    made.close()


@pytest.fixture
def old_month() -> Iterator[str]:
    """A month of long ago, which a test may see dropped."""
    with transaction.atomic():
        made = partitions.ensure_ahead(connection, OLD)
    yield made[0]
    with connection.cursor() as cursor:
        for name in made:
            cursor.execute(f"DROP TABLE IF EXISTS {name}")


def old_run(number: int = 1) -> UUID:
    return UUID(int=partitions.floor(OLD).int + (7 << 76) + number)


def delivered(run: UUID, last: str = "run.completed") -> None:
    """A run of long ago whose events have all arrived."""
    with connection.cursor() as cursor:
        for sequence, kind in ((1, "run.started"), (2, last)):
            cursor.execute(
                "INSERT INTO outbox_event (event_id, run_id, sequence, type, occurred_at, envelope)"
                " VALUES (%s, %s, %s, %s, now(), '{}')",
                [uuid4(), run, sequence, kind],
            )
    Stream.objects.create(run_id=run, project="p", head=2, published=2)


def months() -> list[str]:
    return [partition.name for partition in partitions.existing()]


def test_t32_t33_no_delivery_waits_for_a_notification_and_no_commit_makes_one():
    """A lost nudge cannot delay anything where there are none, and NOTIFY takes a lock of the whole database."""
    folders = [Path(settings.BASE_DIR) / app for app in ("outbox", "approvals", "runs")]
    texts = [path.read_text() for folder in folders for path in [*folder.rglob("*.sql"), *folder.rglob("*.py")]]
    assert not [text for text in texts if re.search(r"\bpg_notify\b|\bNOTIFY [a-z]|\bLISTEN [a-z]", text)]


def test_t41_a_snapshot_that_is_held_open_is_named(monkeypatch):
    monkeypatch.setattr(selectors, "SNAPSHOT_SECONDS", 0.0)
    held, go = threading.Event(), threading.Event()

    def hold() -> None:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            cursor.execute("SELECT count(*) FROM outbox_stream")
            held.set()
            go.wait(WAIT_SECONDS)
        connection.close()

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(WAIT_SECONDS)
    found = selectors.oldest_snapshot()
    go.set()
    holder.join(WAIT_SECONDS)
    assert found is not None
    assert found.state == "idle in transaction"
    told = alarms(selectors.lag(), selectors.recent_delivery(), found)
    assert any(f"process {found.pid}" in sentence for sentence in told)


def test_t41_the_usual_claim_does_not_visit_streams_emptied_long_ago(publisher):
    """The hint: under a held snapshot their dead index entries would make every claim slower than the one before."""
    write(new := run_now(), "a")
    publisher.pass_once()
    write(new, "b")
    publisher._sweep_at = float("inf")
    assert publisher._hint > now() - timedelta(minutes=5)
    assert publisher.pass_once() == 1


def test_t41_a_look_at_everything_takes_a_bounded_share_of_the_time(publisher, monkeypatch):
    import time

    from outbox import publisher as module

    plain = module._query

    def slow(name, parameters):
        if name == "claim":
            time.sleep(0.2)
        return plain(name, parameters)

    monkeypatch.setattr(module, "_query", slow)
    began = time.monotonic()
    publisher._claim()
    assert publisher._sweep_at - began >= 0.2 / module.SWEEP_SHARE


def test_t42_publishers_and_writers_that_touch_the_same_runs_never_deadlock(publisher):
    from django.db import transaction

    from outbox import services
    from outbox.contracts import NewEvent

    runs = [run_now() for _ in range(6)]
    failures: list[Exception] = []

    def append(turn: int) -> None:
        order = runs if turn % 2 else runs[::-1]
        try:
            for n in range(15):
                with transaction.atomic():
                    services.append([NewEvent(run_id=r, project="p", type="t", subject=f"{turn}/{n}") for r in order])
        except Exception as error:
            failures.append(error)
        finally:
            connection.close()

    writers = [threading.Thread(target=append, args=[turn]) for turn in range(4)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        publisher.drain()
        Stream.objects.filter(lease_token__isnull=False).count()
    publisher.drain()
    assert (failures, pending(), Event.objects.count()) == ([], 0, 4 * 15 * 6)


def test_t43_partitions_are_made_ahead_and_the_headroom_is_a_number():
    assert partitions.months_ahead(now()) == partitions.MONTHS_AHEAD
    assert partitions.months_ahead(now() + timedelta(days=31 * 3)) < partitions.MONTHS_AHEAD - 1
    assert partitions.months_ahead(now() + timedelta(days=365 * 3)) == -1


def test_t43_an_event_of_a_month_without_partition_is_refused_and_not_lost_in_a_drawer():
    far = UUID(int=partitions.floor(datetime(2030, 1, 1, tzinfo=UTC)).int + (7 << 76))
    with pytest.raises(Exception, match="no partition"):
        write(far, "a")


def test_t43_a_month_that_was_delivered_ended_and_is_old_enough_is_dropped_with_its_streams(old_month):
    delivered(old_run())
    looked = retention.drop_old(TODAY, months_kept=12)
    assert [month.partition for month in looked if month.dropped][:1] == [old_month]
    assert old_month not in months()
    assert not Stream.objects.filter(run_id=old_run()).exists()


@pytest.mark.parametrize(("months_kept", "today"), [(0, TODAY), (13, TODAY), (1, datetime(2020, 6, 30, tzinfo=UTC))])
def test_t43_a_month_that_is_not_old_enough_stays(old_month, months_kept, today):
    delivered(old_run())
    assert retention.drop_old(today, months_kept) == []
    assert old_month in months()


def undelivered(run: UUID) -> None:
    Stream.objects.filter(run_id=run).update(published=1, ready_at=Now())


def parked(run: UUID) -> None:
    ParkedEvent.objects.create(event_id=uuid4(), run_id=run, sequence=1, reason="invalid", last_error="no")


def queued(run: UUID) -> None:
    parked(run)
    ParkedEvent.objects.update(state="queued")


@pytest.mark.parametrize(
    ("needs", "why"),
    [(undelivered, "undelivered"), (parked, "parked"), (queued, "parked")],
)
def test_t25_t43_a_month_with_anything_undelivered_or_parked_is_never_dropped(old_month, needs, why):
    delivered(old_run(1))
    delivered(old_run(2))
    needs(old_run(2))
    looked = retention.drop_old(TODAY, months_kept=12)
    assert why in looked[0].kept_for
    assert Event.objects.filter(run_id=old_run(2)).count() == 2


def test_t43_a_month_with_a_run_that_has_not_ended_stays(old_month):
    delivered(old_run(), last="turn.started")
    assert "has not ended" in retention.drop_old(TODAY, months_kept=12)[0].kept_for


def test_t43_a_month_with_a_run_that_failed_and_was_resumed_stays(old_month):
    delivered(old_run(), last="run.failed")
    resumed(old_run())
    assert "has not ended" in retention.drop_old(TODAY, months_kept=12)[0].kept_for


def resumed(run: UUID) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO outbox_event (event_id, run_id, sequence, type, occurred_at, envelope)"
            " VALUES (%s, %s, 3, 'run.resumed', now(), '{}')",
            [uuid4(), run],
        )
    Stream.objects.filter(run_id=run).update(head=3, published=3)


def test_t43_a_run_that_goes_on_while_its_month_is_looked_at_keeps_it(old_month, monkeypatch):
    delivered(old_run())
    heads = retention._heads

    def after_the_long_look(month):
        found = heads(month)
        if month.name == old_month and Stream.objects.get(run_id=old_run()).head == 2:
            write(old_run(), "resumed")
        return found

    monkeypatch.setattr(retention, "_heads", after_the_long_look)
    assert "went on" in retention.drop_old(TODAY, months_kept=12)[0].kept_for


@pytest.mark.parametrize("answer", ["a legal hold", RuntimeError("the holds cannot be read")])
def test_t57_whoever_holds_a_run_keeps_its_month_and_so_does_who_cannot_tell(old_month, answer):
    delivered(old_run())
    asked = []

    def held(first, beyond, **_):
        asked.append(first <= old_run() < beyond)
        if isinstance(answer, Exception):
            raise answer
        return answer

    journal_month_expires.connect(held)
    try:
        looked = retention.drop_old(TODAY, months_kept=12)
    finally:
        journal_month_expires.disconnect(held)
    assert looked[0].kept_for
    assert asked[0]
    assert old_month in months()


def test_t57_a_hold_that_is_laid_down_between_the_long_look_and_the_lock_keeps_the_month(old_month):
    delivered(old_run())
    answers, in_the_transaction_that_drops = iter([""]), []

    def held(**_):
        in_the_transaction_that_drops.append(connection.in_atomic_block)
        return next(answers, "a legal hold")

    journal_month_expires.connect(held)
    try:
        looked = retention.drop_old(TODAY, months_kept=12)
    finally:
        journal_month_expires.disconnect(held)
    assert looked[0].kept_for == "a legal hold"
    assert in_the_transaction_that_drops == [False, True]
    assert old_month in months()


def test_t43_where_an_older_month_stays_the_streams_of_a_later_one_go_with_it(old_month):
    """And `manage.py verify` does not miss the events of the month that is gone."""
    later = UUID(int=partitions.floor(datetime(2020, 6, 10, tzinfo=UTC)).int + (7 << 76))
    delivered(old_run())
    undelivered(old_run())
    delivered(later)
    looked = retention.drop_old(TODAY, months_kept=11)
    assert [month.dropped for month in looked][:2] == [False, True]
    assert list(Stream.objects.values_list("run_id", flat=True)) == [old_run()]
    assert verify.journal_from() > later


def test_t43_a_drop_behind_a_long_reader_gives_up_and_lets_the_writers_through(old_month, monkeypatch):
    monkeypatch.setattr(partitions, "LOCK_TIMEOUT_MILLISECONDS", 300)
    delivered(old_run())
    reads, go = threading.Event(), threading.Event()

    def read() -> None:
        with transaction.atomic():
            list(Event.objects.filter(run_id=old_run()))
            reads.set()
            go.wait(WAIT_SECONDS)
        connection.close()

    reader = threading.Thread(target=read)
    reader.start()
    assert reads.wait(WAIT_SECONDS)
    looked = retention.drop_old(TODAY, months_kept=12)
    assert "busy" in looked[0].kept_for
    write(run_now(), "a")  # at once: nothing queues
    go.set()
    reader.join(WAIT_SECONDS)
    assert retention.drop_old(TODAY, months_kept=12)[0].dropped


def test_a_month_that_is_made_later_cannot_be_emptied_either(old_month):
    delivered(old_run())
    with pytest.raises(Exception, match="immutable"), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"TRUNCATE {old_month}")
    assert Event.objects.filter(run_id=old_run()).count() == 2


def test_t43_making_partitions_does_not_depend_on_dropping(old_month, monkeypatch):
    from outbox import tasks

    def fails(*_):
        raise RuntimeError

    monkeypatch.setattr(retention, "drop_old", fails)
    assert tasks.make_partitions() == []


def test_t43_a_drop_that_was_cut_off_before_the_streams_went_is_finished_by_the_next_look(old_month):
    Stream.objects.create(run_id=old_run(), project="p", head=2, published=2)
    with connection.cursor() as cursor:
        for name in months():
            if name < "outbox_event_2021":
                cursor.execute(f"DROP TABLE {name}")
    retention.drop_old(TODAY, months_kept=12)
    assert not Stream.objects.filter(run_id=old_run()).exists()


def test_t45_metrics_are_read_from_the_tables_in_a_bounded_number_of_statements(django_assert_max_num_queries):
    for _ in range(20):
        write(run_now(), *numbered(3))
    with django_assert_max_num_queries(30):
        text = metrics.exposition()
    assert "agent_kernel_outbox_pending_events 60" in text
    assert "agent_kernel_outbox_unaccounted_events 0" in text


def test_t45_no_metric_counts_the_journal():
    for name in ("lag", "recent_delivery", "project_lag", "oldest_snapshot", "jobs"):
        text = (Path(settings.BASE_DIR) / "outbox" / "sql" / f"{name}.sql").read_text()
        for scan in re.findall(r"FROM outbox_event[^)]*", text):
            assert "LIMIT" in scan, f"{name}.sql: {scan}"


def test_t45_streams_to_ask_about_are_found_by_an_index():
    Stream.objects.bulk_create(
        [Stream(run_id=run_now(), project="p", head=1, published=1, seen=1) for _ in range(3_000)]
    )
    text = (Path(settings.BASE_DIR) / "outbox" / "sql" / "to_be_seen.sql").read_text()
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE outbox_stream")
        cursor.execute("EXPLAIN " + text, {"again_seconds": 30.0, "streams": 500})
        assert "stream_to_be_seen" in "\n".join(line for (line,) in cursor.fetchall())


def run_now() -> UUID:
    from kernel_project.primitives.ids import new_id

    return new_id()

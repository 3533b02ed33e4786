"""What an operator must hear about the delivery, each as a sentence with the number behind it. Mends nothing."""

from __future__ import annotations

from collections.abc import Iterator

from outbox import jobs, partitions
from outbox.selectors import Lag, RecentDelivery, Snapshot

LAG_SECONDS_MAX = 60.0


def alarms(lag: Lag, recent: RecentDelivery, snapshot: Snapshot | None) -> list[str]:
    """All that is wrong now, the worst first; nothing: all is well."""
    return [*_loss(lag, recent), *_standstill(lag), *_waits(lag), *_later(snapshot)]


def _loss(lag: Lag, recent: RecentDelivery) -> Iterator[str]:
    if lag.unaccounted:
        yield f"{lag.unaccounted} events are unaccounted for: journal and cursors disagree; run manage.py verify"
    if recent.streams_rewound:
        yield (
            f"the event store has more of {recent.streams_rewound} runs than the journal: was this database restored "
            "from a backup? Run manage.py outbox_raise_epoch"
        )


def _standstill(lag: Lag) -> Iterator[str]:
    if lag.publisher_late:
        age = lag.publisher_age_seconds
        heard = "no publisher has ever run" if age is None else f"the last publisher was heard of {age:.0f} s ago"
        yield f"nothing publishes: {heard}; look at Celery's worker and beat, or run manage.py outbox_publish"
    if lag.destination_failures:
        yield f"the event store failed {lag.destination_failures} times in a row: {lag.destination_error}"
    elif lag.streams_unowned and not lag.publisher_late:
        yield f"{lag.streams_unowned} runs wait and no publisher works on them"


def _waits(lag: Lag) -> Iterator[str]:
    if lag.parked:
        yield f"{lag.parked} events were refused for good and wait for a person: manage.py outbox_parked list"
    if (lag.oldest_age_seconds or 0) > LAG_SECONDS_MAX:
        yield f"the oldest undelivered event is {lag.oldest_age_seconds:.0f} s old"


def _later(snapshot: Snapshot | None) -> Iterator[str]:
    ahead = partitions.months_ahead(partitions.database_now())
    if ahead < partitions.MONTHS_AHEAD - 1:
        yield f"the journal has partitions for {max(ahead, 0)} months ahead only: the job outbox.make_partitions fails"
    for job in jobs.all_jobs():
        if job.overdue:
            due = f"it is due each {job.interval_seconds:.0f} s"
            yield f"the job {job.name} last succeeded {job.age_seconds:.0f} s ago; {due}"
    if snapshot is not None:
        yield (
            f"a transaction is open for {snapshot.age_seconds:.0f} s (process {snapshot.pid} of PostgreSQL, "
            f"{snapshot.application or 'unnamed'}, {snapshot.state}) and slows the outbox down"
        )

"""The journal of events and a cursor per run. Rows of the journal are never changed."""

from __future__ import annotations

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Coalesce, Now


class Stream(models.Model):
    """The events of one run: how many there are, and how far the event store has acknowledged them.

    `head` and `ready_at` stand in one row on purpose: in two rows a wake-up could be lost between a publisher's "caught
    up" and a writer's append. Only the outbox writes here; times come from the database clock.
    """

    run_id = models.UUIDField(primary_key=True, editable=False)
    project = models.CharField(max_length=100)
    head = models.BigIntegerField(default=0, help_text="Sequence of the last event.")
    published = models.BigIntegerField(default=0, help_text="Last sequence that was acknowledged or parked.")
    ready_at = models.DateTimeField(null=True, help_text="Since when the oldest unpublished event waits.")
    lease_token = models.UUIDField(null=True)
    leased_until = models.DateTimeField(null=True)
    attempts = models.IntegerField(default=0, help_text="Sendings since the last acknowledgement.")
    next_attempt_at = models.DateTimeField(null=True)
    last_error = models.TextField(blank=True, default="")
    seen = models.BigIntegerField(null=True, help_text="Highest contiguous sequence the event store says it has.")
    seen_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(published__lte=F("head")), name="stream_published_within_head"),
            models.CheckConstraint(
                condition=Q(lease_token__isnull=True, leased_until__isnull=True)
                | Q(lease_token__isnull=False, leased_until__isnull=False),
                name="stream_lease_is_whole",
            ),
            models.CheckConstraint(
                condition=Q(published=F("head"), ready_at__isnull=True)
                | Q(published__lt=F("head"), ready_at__isnull=False),
                name="stream_ready_when_behind",
            ),
        ]
        indexes = [
            # read by sql/claim.sql and by the lag
            models.Index(fields=["ready_at"], name="stream_ready", condition=Q(ready_at__isnull=False)),
            # read by sql/to_be_seen.sql
            models.Index(
                F("seen_at").asc(nulls_first=True),
                F("run_id").desc(),
                name="stream_to_be_seen",
                condition=Q(published__gt=Coalesce(F("seen"), 0)),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.run_id} {self.published}/{self.head}"


class Event(models.Model):
    """One event of the journal, as it is sent: `envelope` is the exact text, the other columns are for filters.

    The table is partitioned by ranges of `run_id`; run ids are UUIDv7, so a partition holds the runs of one month.
    A trigger refuses every UPDATE, and DELETE outside a purge. The table itself is made by migration 0001_journal.
    """

    event_id = models.UUIDField(primary_key=True)
    run_id = models.UUIDField()
    sequence = models.BigIntegerField()
    type = models.CharField(max_length=100)
    occurred_at = models.DateTimeField()
    recorded_at = models.DateTimeField(db_default=Now())
    operation_id = models.UUIDField(null=True)
    caused_by = ArrayField(models.UUIDField(), default=list)
    envelope = models.TextField()

    class Meta:
        ordering = ["run_id", "sequence"]

    def __str__(self) -> str:
        return f"{self.sequence} {self.type}"


class ParkedEvent(models.Model):
    """An event that the event store refused for good. It waits for a person; its stream goes on.

    A person asks for a replay (queued; the publisher sends it, and it is replayed or parked again) or gives it up.
    """

    class State(models.TextChoices):
        PARKED = "parked"
        QUEUED = "queued", "waiting for its replay"
        REPLAYED = "replayed", "delivered after a replay"
        GIVEN_UP = "given_up", "given up by a named person"

    event_id = models.UUIDField(primary_key=True)
    run_id = models.UUIDField(db_index=True)
    sequence = models.BigIntegerField()
    state = models.CharField(max_length=10, choices=State.choices, default=State.PARKED)
    reason = models.CharField(max_length=40, help_text="conflict, invalid or too_large")
    last_error = models.TextField()
    attempts = models.IntegerField(default=1)
    parked_at = models.DateTimeField(db_default=Now())
    next_attempt_at = models.DateTimeField(db_default=Now(), help_text="When a queued replay is sent, or sent again.")
    held_count = models.IntegerField(db_default=0, help_text="Replays in a row that were neither taken nor refused.")
    resolved_at = models.DateTimeField(null=True)
    resolved_by = models.CharField(max_length=200, blank=True, default="")
    note = models.TextField(blank=True, default="")

    OPEN = (State.PARKED, State.QUEUED)

    class Meta:
        permissions = [
            ("replay_parkedevent", "Can have parked events sent again"),
            ("give_up_parkedevent", "Can give up parked events"),
        ]
        constraints = [
            models.CheckConstraint(
                condition=Q(state__in=["parked", "queued"], resolved_at__isnull=True)
                | Q(state__in=["replayed", "given_up"], resolved_at__isnull=False),
                name="parked_resolution_has_a_time",
            ),
        ]
        indexes = [
            # read by the lag
            models.Index(fields=["parked_at"], name="parked_open", condition=Q(state__in=["parked", "queued"])),
            # read by the publisher, once a second
            models.Index(fields=["next_attempt_at"], name="parked_queued", condition=Q(state="queued")),
            # read by the home page
            models.Index(fields=["parked_at"], name="parked_given_up", condition=Q(state="given_up")),
        ]

    def __str__(self) -> str:
        return f"{self.run_id}#{self.sequence} {self.reason}"


class Destination(models.Model):
    """The event store as the publisher sees it: its circuit, and which publisher is at work.

    One failure of the store stops all sending to it, and nothing is dropped. One publisher works at a time; it keeps
    its place by renewing `worker_until`, so a dead one is replaced when that has passed.
    """

    name = models.CharField(max_length=100, primary_key=True)
    failures = models.IntegerField(default=0, help_text="Failures in a row; 0 means the circuit is closed.")
    open_until = models.DateTimeField(null=True)
    last_error = models.TextField(blank=True, default="")
    last_success_at = models.DateTimeField(null=True)
    worker_token = models.UUIDField(null=True)
    worker_until = models.DateTimeField(null=True)
    turned_away = models.BigIntegerField(db_default=0, help_text="Publishers that found the place taken and left.")

    def __str__(self) -> str:
        return self.name


class PublisherHeartbeat(models.Model):
    """One row for each publisher process: its age tells whether anything publishes at all."""

    publisher = models.CharField(max_length=200, primary_key=True)
    beat_at = models.DateTimeField(db_default=Now())
    published_total = models.BigIntegerField(default=0)
    fenced_total = models.BigIntegerField(default=0, help_text="Acknowledgements that came after the lease was lost.")

    def __str__(self) -> str:
        return self.publisher


class SourceEpoch(models.Model):
    """From when on events are told under another source: after a restore from a backup sequences begin to repeat.

    The newest row counts. Its name follows KERNEL_SOURCE_ID in the events' `source.id`.
    """

    name = models.CharField(max_length=20, primary_key=True)
    raised_at = models.DateTimeField(db_default=Now())
    raised_by = models.CharField(max_length=200)
    note = models.TextField()

    def __str__(self) -> str:
        return self.name


class PeriodicJob(models.Model):
    """When each job that beat ticks last succeeded, so that a silent beat or a deaf worker is seen."""

    name = models.CharField(max_length=200, primary_key=True)
    interval_seconds = models.FloatField()
    last_success_at = models.DateTimeField(db_default=Now())

    def __str__(self) -> str:
        return self.name


class LagSample(models.Model):
    """How far the event store was behind at one moment of the last hour. A ring: see lag_history."""

    slot = models.SmallIntegerField(primary_key=True)
    at = models.DateTimeField()
    pending = models.BigIntegerField()
    oldest_seconds = models.FloatField()

    def __str__(self) -> str:
        return f"{self.at}: {self.pending}"

"""The tables of the event store. Events are facts: written once by `inbox`, never changed.

The projection's tables carry a generation, so that a rebuild grows beside the one that is read.
"""

from __future__ import annotations

from typing import Any

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import F, Q


def _text(**options: Any) -> models.TextField[str, str]:
    """Opaque text, compared and sorted code point by code point."""
    return models.TextField(db_collation="C", **options)


class Event(models.Model):
    """The inbox: one event, in the order of its arrival.

    `content` is the canonical text of everything but `received_at`: what is compared and answered. `raw` is the text as
    it was sent, byte for byte, and NULL where that was the canonical text already.
    """

    position = models.BigIntegerField(primary_key=True)
    source_id = _text()
    event_id = _text()
    project = _text(blank=True)
    run = _text(blank=True)
    task = _text(blank=True)
    actor_id = _text(blank=True)
    type = _text()
    subject_id = _text(blank=True, help_text="The knowledge_id or operation_id of the event's data.")
    sequence = models.BigIntegerField(null=True)
    parents = ArrayField(_text(), help_text="parent_event_id and caused_by: ids of events of the same source.")
    occurred_at = models.DateTimeField()
    received_at = models.DateTimeField()
    quarantine = models.TextField(
        blank=True, db_default="", help_text="Why the event could not be interpreted when it arrived; empty: it could."
    )
    content = models.TextField()
    raw = models.TextField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["event_id", "source_id"], name="temporality_event_key"),
            models.UniqueConstraint(
                fields=["source_id", "run", "sequence"],
                condition=Q(sequence__isnull=False),
                name="temporality_event_sequence",
            ),
            models.CheckConstraint(
                condition=Q(sequence__isnull=True) | (Q(sequence__gte=1) & ~Q(run="")),
                name="temporality_event_sequence_in_run",
            ),
        ]
        indexes = [
            # the pages of the reading API, by time
            models.Index(fields=["project", "occurred_at", "received_at"], name="temporality_event_time"),
            # one run's timeline and its state; a run looked for in the admin
            models.Index(fields=["run", "project", "occurred_at"], name="temporality_event_run", condition=~Q(run="")),
            # a reader that tails one project
            models.Index(fields=["project", "position"], name="temporality_event_tail"),
            # history of an operation or a knowledge item
            models.Index(
                fields=["subject_id", "project"], name="temporality_event_subject", condition=~Q(subject_id="")
            ),
            # reading by type, and all knowledge of a project at a time
            models.Index(fields=["project", "type", "occurred_at"], name="temporality_event_type"),
        ]

    def __str__(self) -> str:
        return f"{self.type} {self.event_id}"


class Head(models.Model):
    """One row: the last position given out. Its lock orders all ingest, so that no reader can miss a commit."""

    id = models.SmallIntegerField(primary_key=True, default=1)
    position = models.BigIntegerField(default=0)
    received_at = models.DateTimeField(help_text="Time of the last event: never goes back, even if the clock does.")

    class Meta:
        constraints = [models.CheckConstraint(condition=Q(id=1), name="temporality_head_one_row")]


class Conflict(models.Model):
    """A second version of something that is there already. The first version, at `position`, stays untouched."""

    class Kind(models.TextChoices):
        CONTENT = "content", "same event id, other content"
        SEQUENCE = "sequence", "same sequence in the run, other event"

    kind = models.TextField(choices=Kind.choices)
    position = models.BigIntegerField(help_text="Where the first version stands in the inbox.")
    source_id = _text()
    event_id = _text()
    project = _text(blank=True)
    run = _text(blank=True)
    content_hash = models.BinaryField()
    content = models.TextField()
    raw = models.TextField(null=True)
    first_seen_at = models.DateTimeField()
    last_seen_at = models.DateTimeField()
    times_seen = models.BigIntegerField(default=1)

    class Meta:
        constraints = [
            # a redelivery of the same refused version counts up, it adds no row
            models.UniqueConstraint(
                fields=["source_id", "event_id", "content_hash", "kind"], name="temporality_conflict_version"
            )
        ]
        indexes = [models.Index(fields=["project", "-id"], name="temporality_conflict_project")]

    def __str__(self) -> str:
        return f"{self.kind} {self.event_id}"


class Token(models.Model):
    """A right to write or read. Only the hash of the secret is kept."""

    class Role(models.TextChoices):
        WRITER = "writer", "reads and writes"
        READER = "reader", "reads"

    name = models.TextField(unique=True)
    token_hash = models.BinaryField(unique=True)
    role = models.TextField(choices=Role.choices)
    all_projects = models.BooleanField(default=False)
    projects = ArrayField(models.TextField(), default=list, blank=True)
    sources = ArrayField(models.TextField(), default=list, blank=True, help_text="Empty: any source.")
    created_at = models.DateTimeField()
    revoked_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(role__in=["writer", "reader"]), name="temporality_token_role"),
            models.CheckConstraint(
                condition=Q(all_projects=True) | ~Q(projects=[]), name="temporality_token_has_projects"
            ),
        ]

    def __str__(self) -> str:
        return self.name


class Projector(models.Model):
    """How far one generation of the projection has read the inbox. The row's lock allows one projector at a time."""

    class State(models.TextChoices):
        LIVE = "live", "kept up to date"
        BUILDING = "building", "a rebuild is under way"
        RETIRED = "retired", "replaced, to be deleted"

    generation = models.IntegerField(primary_key=True)
    state = models.TextField(choices=State.choices)
    position = models.BigIntegerField(default=0)
    target = models.BigIntegerField(default=0, help_text="Where the rebuild stops reading for its comparison.")
    project = _text(blank=True, help_text="A rebuild of one project; empty: all.")
    catalogue = models.TextField(
        blank=True, help_text="Hash of the known types: when it changes, quarantine is judged anew."
    )
    updated_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["state"], condition=Q(state="live"), name="temporality_projector_one_live"),
            models.UniqueConstraint(
                fields=["state"], condition=Q(state="building"), name="temporality_projector_one_rebuild"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.generation} ({self.state})"


class Item(models.Model):
    """One run, operation, approval or knowledge item as its applied events make it.

    `registers` is canonical JSON, see `projection/folds.py`: each value with the event that set it.
    """

    class Kind(models.TextChoices):
        RUN = "run"
        OPERATION = "operation"
        APPROVAL = "approval"
        KNOWLEDGE = "knowledge"

    generation = models.IntegerField()
    project = _text(blank=True)
    kind = _text(choices=Kind.choices)
    source_id = _text(blank=True, help_text="Empty for knowledge, which belongs to the project.")
    key = _text()
    status = _text()
    run = _text(blank=True)
    registers = models.TextField()
    changed_at = models.DateTimeField(help_text="Arrival of the last event that was applied.")

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["generation", "project", "kind", "source_id", "key"], name="temporality_item_key"
            )
        ]
        indexes = [
            # operations by state. It stands first, so that no look-up by key can take this index for its own: over a
            # table that has grown since its statistics were taken, the planner thinks both equally good
            models.Index(fields=["status", "generation", "project", "kind"], name="temporality_item_status"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.key}"


class Progress(models.Model):
    """What has been received of one run of one source, applied or not."""

    generation = models.IntegerField()
    source_id = _text()
    run = _text()
    project = _text(blank=True)
    count = models.BigIntegerField(help_text="Events with a sequence.")
    highest = models.BigIntegerField()
    contiguous = models.BigIntegerField(help_text="The highest sequence below which nothing is missing.")
    unnumbered = models.BigIntegerField(help_text="Events without a sequence.")
    last_received_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["generation", "project", "source_id", "run"], name="temporality_progress_run"
            )
        ]
        indexes = [
            # runs with gaps: few among many
            models.Index(
                fields=["generation", "project"],
                name="temporality_progress_gap",
                condition=Q(contiguous__lt=F("highest")),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.run} {self.contiguous}/{self.highest}"


class Pending(models.Model):
    """An event that is stored and not applied, and why."""

    class State(models.TextChoices):
        WAITING = "waiting", "a parent has not arrived"
        BLOCKED = "blocked", "a parent is itself not applied"
        QUARANTINED = "quarantined", "its meaning is not known"
        READY = "ready", "released, about to be applied"

    generation = models.IntegerField()
    position = models.BigIntegerField()
    project = _text(blank=True)
    source_id = _text()
    event_id = _text()
    type = _text()
    run = _text(blank=True)
    kind = _text(blank=True, help_text="Kind of the subject that is incomplete without it.")
    key = _text(blank=True)
    state = models.TextField(choices=State.choices)
    reason = models.TextField(blank=True)
    circle = models.BigIntegerField(
        null=True, help_text="Events that wait for each other are released together; the same number for all of them."
    )
    received_at = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["generation", "position"], name="temporality_pending_event")]
        indexes = [
            models.Index(fields=["generation", "state", "position"], name="temporality_pending_state"),
            models.Index(fields=["generation", "project", "kind", "key"], name="temporality_pending_subject"),
            models.Index(fields=["generation", "project", "run"], name="temporality_pending_run"),
            # is this parent applied?
            models.Index(fields=["generation", "source_id", "event_id"], name="temporality_pending_key"),
            # the members of a circle
            models.Index(
                fields=["generation", "circle"], name="temporality_pending_circle", condition=Q(circle__isnull=False)
            ),
        ]

    def __str__(self) -> str:
        return f"{self.state} {self.event_id}"


class Edge(models.Model):
    """A causal edge that is not satisfied: waited for, or unresolvable. All edges are in `Event.parents`."""

    class State(models.TextChoices):
        MISSING = "missing", "the parent has not arrived"
        UNAPPLIED = "unapplied", "the parent waits itself"
        SELF = "self", "the event names itself"
        CYCLIC = "cyclic", "the parent waits for this event"
        FOREIGN = "foreign_project", "the parent belongs to another project"
        MALFORMED = "malformed", "caused_by is not a list of event ids"

    generation = models.IntegerField()
    position = models.BigIntegerField(help_text="The event that names the parent.")
    source_id = _text()
    parent_event_id = _text(blank=True)
    project = _text(blank=True)
    state = models.TextField(choices=State.choices)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["generation", "position", "parent_event_id"], name="temporality_edge_key")
        ]
        indexes = [
            # who waits for this event?
            models.Index(fields=["generation", "source_id", "parent_event_id"], name="temporality_edge_parent"),
        ]

    def __str__(self) -> str:
        return f"{self.position} -> {self.parent_event_id} ({self.state})"

"""What the kernel keeps, for how long and why. Names projects and runs by id, so that none goes with them."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from kernel_project.primitives.ids import new_id


class Hold(models.Model):
    """A legal hold: while it is in force, nothing that it covers is deleted, by nobody and on no path.

    Triggers of the database keep it so; `runs/keeping/rules.py` says which table is covered how. A hold is placed once
    and released once, and its row stays for ever. What a scope covers: a project, everything of it; a run or an
    operation, the run with all its records (one call cannot be understood, nor its events be numbered, without the
    others); an artifact, that content wherever a run of the project refers to it.
    """

    class Scope(models.TextChoices):
        PROJECT = "project"
        RUN = "run"
        OPERATION = "operation"
        ARTIFACT = "artifact"

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    project = models.CharField(max_length=100, help_text="Project slug.")
    scope = models.CharField(max_length=10, choices=Scope.choices)
    run_id = models.UUIDField(null=True, help_text="The run that stays; for an operation, its run.")
    operation_id = models.UUIDField(null=True)
    digest = models.CharField(max_length=64, blank=True, default="", help_text="Of an artifact.")
    reason = models.TextField()
    placed_by = models.CharField(max_length=200)
    placed_at = models.DateTimeField(db_default=Now())
    released_by = models.CharField(max_length=200, blank=True, default="")
    released_at = models.DateTimeField(null=True)
    release_reason = models.TextField(blank=True, default="")

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(scope="project", run_id__isnull=True, operation_id__isnull=True, digest="")
                | Q(scope="run", run_id__isnull=False, operation_id__isnull=True, digest="")
                | Q(scope="operation", run_id__isnull=False, operation_id__isnull=False, digest="")
                | Q(scope="artifact", run_id__isnull=True, operation_id__isnull=True) & ~Q(digest=""),
                name="hold_names_its_target",
            ),
            models.CheckConstraint(condition=~Q(reason="") & ~Q(placed_by=""), name="hold_has_a_reason_and_an_author"),
            models.CheckConstraint(
                condition=Q(released_at__isnull=True, released_by="", release_reason="")
                | Q(released_at__isnull=False) & ~Q(released_by="") & ~Q(release_reason=""),
                name="hold_release_has_a_reason_and_an_author",
            ),
        ]
        indexes = [
            # read by the trigger of each row that is deleted, and by the purge
            models.Index(fields=["project"], name="hold_in_force", condition=Q(released_at__isnull=True)),
            models.Index(fields=["project", "-id"], name="hold_list"),  # read by the API's list
        ]
        permissions = [("place_hold", "Can place and release legal holds")]

    @property
    def target(self) -> str:
        """What is held, as people write it."""
        return str(self.operation_id or self.run_id or self.digest or self.project)

    def __str__(self) -> str:
        return f"hold on {self.scope} {self.target}"


class RetentionRule(models.Model):
    """For how long a project keeps records of a class. Without a row they are kept for ever."""

    class RecordClass(models.TextChoices):
        INPUT = "artifact.input", "inputs of runs"
        ARGUMENTS = "artifact.arguments", "arguments and prompts"
        RESULT = "artifact.result", "results and answers"
        LOG = "artifact.log", "logs"
        RUNS = "runs", "runs with their operations"
        EVENTS = "events", "the journal of runs that are purged"
        APPROVALS = "approvals", "requests, decisions and messages of runs that are purged"
        KEYS = "idempotency_keys", "idempotency keys of runs that are purged"

    project = models.CharField(max_length=100, help_text="Project slug.")
    record_class = models.CharField(max_length=20, choices=RecordClass.choices)
    days = models.PositiveIntegerField(help_text="After the end of the run.")
    set_by = models.CharField(max_length=200)
    set_at = models.DateTimeField(db_default=Now())
    looked_until = models.DateTimeField(null=True, help_text="Ends of runs up to which the purge has looked.")
    looked_all_at = models.DateTimeField(null=True, help_text="When it last began a look at everything.")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["project", "record_class"], name="retention_rule"),
            models.CheckConstraint(condition=Q(days__gte=1), name="retention_is_a_time"),
        ]

    def __str__(self) -> str:
        return f"{self.project}: {self.record_class} for {self.days} days"


class Tombstone(models.Model):
    """What is left of a purged run, or of an operation whose tool says when two calls are the same: key and hash.

    By it a repeated start or a second call is known as a repetition. Tombstones are small and stay.
    """

    project = models.CharField(max_length=100)
    run_id = models.UUIDField()
    operation_id = models.UUIDField(null=True, help_text="Empty: of the run itself.")
    unique_key = models.CharField(max_length=64, blank=True, default="")
    digest = models.CharField(max_length=64, help_text="Of the run's input, or of the operation's arguments.")
    ended_at = models.DateTimeField(help_text="When the run ended.")
    purged_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = [
            # read by whoever looks for a run that is gone
            models.UniqueConstraint(fields=["run_id"], condition=Q(operation_id__isnull=True), name="tombstone_of_run"),
            models.UniqueConstraint(
                fields=["operation_id"], condition=Q(operation_id__isnull=False), name="tombstone_of_operation"
            ),
        ]
        indexes = [
            # read by `unique_by`
            models.Index(fields=["project", "unique_key"], name="tombstone_unique_key", condition=~Q(unique_key="")),
            # read by the purge of what outlives the runs
            models.Index(
                fields=["project", "ended_at", "run_id"], name="tombstone_due", condition=Q(operation_id__isnull=True)
            ),
        ]

    def __str__(self) -> str:
        return f"tombstone of {self.operation_id or self.run_id}"


class Purge(models.Model):
    """One purge of one project: its progress while it works, its receipt afterwards."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    project = models.CharField(max_length=100)
    counts = models.JSONField(default=dict, help_text="Rows by class, written with the rows that went.")
    started_at = models.DateTimeField(db_default=Now())
    beat_at = models.DateTimeField(db_default=Now(), help_text="The last batch.")
    ended_at = models.DateTimeField(null=True)
    outcome = models.CharField(max_length=20, blank=True, default="", help_text="completed or interrupted")

    class Meta:
        indexes = [models.Index(fields=["beat_at"], name="purge_at_work", condition=Q(ended_at__isnull=True))]

    def __str__(self) -> str:
        return f"purge of {self.project}"


class AuditEntry(models.Model):
    """One action or decision, in a chain of hashes per project: none can be changed, left out or put in unseen.

    A trigger writes it with the event (or the line of the console's audit list) that tells the action. Sealing puts it
    into the chain of its project, seconds later, so that no two actions of a project wait for each other. The chain
    of the empty project holds what belongs to none.
    """

    action = models.CharField(max_length=100, help_text="The event's type, console, or what became of a key.")
    event_id = models.UUIDField(null=True)
    run_id = models.UUIDField(null=True, help_text="The stream of the event.")
    content_hash = models.CharField(max_length=64, help_text="SHA-256 of the event as it was told, or of the detail.")
    detail = models.TextField(blank=True, default="", db_default="")
    at = models.DateTimeField(db_default=Now())
    project = models.CharField(max_length=100, null=True)
    actor = models.CharField(max_length=200, blank=True, default="", db_default="")
    sequence = models.BigIntegerField(null=True, help_text="Empty: not yet sealed.")
    previous_hash = models.CharField(max_length=64, blank=True, default="", db_default="")
    hash = models.CharField(max_length=64, blank=True, default="", db_default="")

    class Meta:
        verbose_name_plural = "audit entries"
        constraints = [
            # a fresh entry is in no chain: whoever acts pays for one index less
            models.UniqueConstraint(
                fields=["project", "sequence"], name="audit_place", condition=Q(sequence__isnull=False)
            ),
            models.CheckConstraint(
                condition=Q(sequence__isnull=True, hash="") | Q(sequence__isnull=False, project__isnull=False),
                name="audit_entry_is_sealed_whole",
            ),
        ]
        indexes = [
            models.Index(fields=["id"], name="audit_unsealed", condition=Q(sequence__isnull=True)),  # read by sealing
            # read by the export
            models.Index(fields=["run_id"], name="audit_sealed_of_run", condition=Q(sequence__isnull=False)),
        ]

    def __str__(self) -> str:
        return f"{self.action} by {self.actor}"

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

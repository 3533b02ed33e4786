"""Policy, and a person's yes or no. Rows of other apps are named by id only."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.db import models
from django.db.models import ExpressionWrapper, F, Q
from django.db.models.expressions import CombinedExpression
from django.db.models.functions import Now

from kernel_project.primitives.ids import new_id

DEADLINE_DAYS_MAX = 365  # a request that waits longer is a mistake; the database refuses it
DEADLINE_SPAN = timedelta(days=DEADLINE_DAYS_MAX + 1)


def _requested(shift: CombinedExpression) -> ExpressionWrapper[Any]:
    return ExpressionWrapper(shift, output_field=models.DateTimeField())


class Answer(models.TextChoices):
    """What a policy says of a call."""

    ALLOW = "allow"
    DENY = "deny"
    REQUIRE = "require", "require approval"


class Expiry(models.TextChoices):
    """What follows when nobody decided in time."""

    REJECT = "reject"
    CANCEL_RUN = "cancel_run", "cancel the run"


class Policy(models.Model):
    """One version of one rule. A version is never changed once it is written: a change is a new version.

    The patterns are shell-style (`*` matches all). Of the rules that match, the narrower one decides, then the later
    one. With no rule, a write that has neither a living idempotency key nor a probe requires approval, and everything
    else is allowed.
    """

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    project = models.CharField(max_length=100, help_text="Project slug.")
    name = models.CharField(max_length=100)
    version = models.PositiveIntegerField()
    agent = models.CharField(max_length=100, default="*", help_text="Pattern on the agent's name.")
    tool = models.CharField(max_length=255, default="*", help_text="Pattern on server/tool.")
    effect = models.CharField(max_length=5, choices=[("read", "read"), ("write", "write")], blank=True, default="")
    answer = models.CharField(max_length=10, choices=Answer.choices)
    group = models.CharField(max_length=150, blank=True, default="", help_text="Group whose members may decide.")
    deadline_seconds = models.PositiveIntegerField(default=24 * 3600)
    on_expiry = models.CharField(max_length=10, choices=Expiry.choices, default=Expiry.REJECT)
    four_eyes = models.BooleanField(default=False, help_text="Whoever started the run may not approve.")
    created_at = models.DateTimeField(db_default=Now())
    created_by = models.CharField(max_length=200)
    retired_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        verbose_name_plural = "policies"
        constraints = [
            models.UniqueConstraint(fields=["project", "name", "version"], name="policy_version"),
            models.CheckConstraint(
                condition=Q(deadline_seconds__gte=1, deadline_seconds__lte=DEADLINE_DAYS_MAX * 24 * 3600),
                name="policy_deadline_is_a_time_to_come",
            ),
        ]
        indexes = [
            # read by policy.decide for each proposed call
            models.Index(fields=["project"], name="policy_in_force", condition=Q(retired_at__isnull=True)),
        ]

    def __str__(self) -> str:
        return f"{self.name} v{self.version}"


class Approval(models.Model):
    """One request for a person's decision, bound to exactly one call.

    `binding` is the canonical JSON of everything that the decision covers (tool, definition digest, final arguments,
    agent version), stored once; `binding_hash` is over those bytes. The approved call that runs is the stored one. A
    yes to a call that has changed since is voided, and a new request stands in its place.
    """

    class State(models.TextChoices):
        WAITING = "waiting"
        GRANTED = "granted"
        REJECTED = "rejected"
        EXPIRED = "expired"
        WITHDRAWN = "withdrawn"
        VOIDED = "voided", "voided: the call was no longer the one that was approved"

    id = models.UUIDField(primary_key=True, editable=False)
    project = models.CharField(max_length=100)
    run_id = models.UUIDField()
    operation_id = models.UUIDField()
    agent = models.CharField(max_length=100)
    tool = models.CharField(max_length=255)
    effect = models.CharField(max_length=5)
    binding = models.TextField()
    binding_hash = models.CharField(max_length=64)
    arguments_hash = models.CharField(max_length=64)
    policy = models.ForeignKey(Policy, null=True, on_delete=models.PROTECT, help_text="Empty: the kernel's default.")
    policy_name = models.CharField(max_length=130)
    group = models.CharField(max_length=150, blank=True, default="")
    four_eyes = models.BooleanField(default=False)
    on_expiry = models.CharField(max_length=10, choices=Expiry.choices, default=Expiry.REJECT)
    requested_by = models.CharField(max_length=200, help_text="Who started the run.")
    state = models.CharField(max_length=10, choices=State.choices, default=State.WAITING)
    requested_at = models.DateTimeField(db_default=Now())
    deadline_at = models.DateTimeField()
    decided_at = models.DateTimeField(null=True)
    decided_by = models.CharField(max_length=200, blank=True, default="")
    reason = models.TextField(blank=True, default="")

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(state="waiting", decided_at__isnull=True)
                | ~Q(state="waiting") & Q(decided_at__isnull=False),
                name="approval_decided_has_a_time",
            ),
            models.CheckConstraint(
                condition=Q(
                    deadline_at__gt=_requested(F("requested_at") - DEADLINE_SPAN),
                    deadline_at__lt=_requested(F("requested_at") + DEADLINE_SPAN),
                ),
                name="approval_deadline_is_near",  # no infinity, no year 9999: such a row could not be read,
            ),
            # One call, one request that counts: a voided one stays for the record and decides nothing.
            models.UniqueConstraint(
                fields=["operation_id"], condition=~Q(state="voided"), name="approval_one_per_operation"
            ),
        ]
        indexes = [
            # read by the queue and by the expiry job
            models.Index(fields=["deadline_at"], name="approval_waiting", condition=Q(state="waiting")),
            models.Index(fields=["run_id"], name="approval_of_run"),
        ]
        permissions = [("decide_approval", "Can approve and reject")]

    def __str__(self) -> str:
        return f"{self.tool} {self.state}"


class Decision(models.Model):
    """One try to decide, applied or not: late, repeated and forbidden tries stay on record with the reason."""

    approval = models.ForeignKey(Approval, on_delete=models.PROTECT, related_name="decisions")
    actor = models.CharField(max_length=200)
    verdict = models.CharField(max_length=10, choices=[("approve", "approve"), ("reject", "reject")])
    reason = models.TextField(blank=True, default="")
    via = models.CharField(max_length=20, help_text="admin, api or command")
    at = models.DateTimeField(db_default=Now())
    applied = models.BooleanField()
    refusal = models.CharField(max_length=40, blank=True, default="", help_text="Why it was not applied.")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["approval"], condition=Q(applied=True), name="one_applied_decision"),
        ]

    def __str__(self) -> str:
        return f"{self.actor}: {self.verdict}"

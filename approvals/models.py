"""Policy, and a person's yes or no. Rows of other apps are named by id only."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import ExpressionWrapper, F, Q, Value
from django.db.models.expressions import CombinedExpression
from django.db.models.functions import Now

from kernel_project.primitives.ids import new_id

DEADLINE_DAYS_MAX = 365  # a request that waits longer is a mistake; the database refuses it
DEADLINE_SPAN = timedelta(days=DEADLINE_DAYS_MAX + 1)
QUORUM_MAX = 20  # people that one request may need; more would never come together


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
    ESCALATE = "escalate", "ask another group"


EFFECTS = [("read", "read"), ("write", "write"), ("opaque", "write with neither key nor probe")]


class Policy(models.Model):
    """One version of one rule. A version is never changed once it is written: a change is a new version.

    The patterns are shell-style (`*` matches all), `arguments` are conditions as in `predicates`. Of the rules that
    match, the narrower one decides, then the later one. With no rule, a write that has neither a living idempotency key
    nor a probe requires approval, and everything else is allowed.
    """

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    project = models.CharField(max_length=100, help_text="Project slug.")
    name = models.CharField(max_length=100)
    version = models.PositiveIntegerField()
    agent = models.CharField(max_length=100, default="*", help_text="Pattern on the agent's name.")
    tool = models.CharField(max_length=255, default="*", help_text="Pattern on server/tool.")
    effect = models.CharField(max_length=6, choices=EFFECTS, blank=True, default="")
    arguments = models.JSONField(
        blank=True,
        default=list,
        db_default=Value([], models.JSONField()),
        help_text='Conditions that must all hold, such as [{"path": "$.amount", "range": {"max": 100}}].',
    )
    answer = models.CharField(max_length=10, choices=Answer.choices)
    group = models.CharField(max_length=150, blank=True, default="", help_text="Group whose members may decide.")
    quorum = models.PositiveSmallIntegerField(
        default=1, db_default=1, help_text="How many people must say yes; one no is enough."
    )
    deadline_seconds = models.PositiveIntegerField(default=24 * 3600)
    on_expiry = models.CharField(max_length=10, choices=Expiry.choices, default=Expiry.REJECT)
    escalate_to = models.CharField(
        max_length=150,
        blank=True,
        default="",
        db_default="",
        help_text="Group that is asked next, with a deadline of its own.",
    )
    four_eyes = models.BooleanField(default=False, help_text="Whoever started the run may not approve.")
    break_glass = models.BooleanField(
        default=False,
        db_default=False,
        help_text="In an emergency a trusted person outside the group may approve alone, with a reason.",
    )
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
            models.CheckConstraint(condition=Q(quorum__gte=1, quorum__lte=QUORUM_MAX), name="policy_quorum_is_a_few"),
            models.CheckConstraint(
                condition=Q(on_expiry="escalate") & ~Q(escalate_to="") | ~Q(on_expiry="escalate") & Q(escalate_to=""),
                name="policy_escalates_to_somebody",
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
    yes to a call that has changed since is voided, an edit supersedes the request, a deadline may pass it on to another
    group: each time a new request stands in its place, and this one stays as it was.
    """

    class State(models.TextChoices):
        WAITING = "waiting"
        GRANTED = "granted"
        REJECTED = "rejected"
        EXPIRED = "expired"
        WITHDRAWN = "withdrawn"
        VOIDED = "voided", "voided: the call was no longer the one that was approved"
        SUPERSEDED = "superseded", "superseded: its arguments were edited"
        ESCALATED = "escalated", "escalated: nobody decided in time, another group was asked"

    class Risk(models.IntegerChoices):
        LOW = 1, "low"
        MEDIUM = 2, "medium"
        HIGH = 3, "high"

    REPLACED = (State.VOIDED, State.SUPERSEDED, State.ESCALATED)

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
    quorum = models.PositiveSmallIntegerField(default=1, db_default=1)
    four_eyes = models.BooleanField(default=False)
    break_glass = models.BooleanField(
        default=False, db_default=False, help_text="Whether the policy provides for emergencies."
    )
    on_expiry = models.CharField(max_length=10, choices=Expiry.choices, default=Expiry.REJECT)
    escalate_to = models.CharField(max_length=150, blank=True, default="", db_default="")
    risk = models.PositiveSmallIntegerField(choices=Risk.choices, default=Risk.HIGH, db_default=Risk.HIGH)
    idempotent_for_seconds = models.PositiveIntegerField(null=True)
    probes = models.BooleanField(default=False, db_default=False)
    supersedes = models.UUIDField(null=True, help_text="The request in whose place this one stands.")
    edited_by = models.CharField(
        max_length=200, blank=True, default="", db_default="", help_text="Who wrote these arguments."
    )
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
            # One call, one request that counts: a replaced one stays for the record and decides nothing.
            models.UniqueConstraint(
                fields=["operation_id"],
                condition=~Q(state__in=("voided", "superseded", "escalated")),
                name="approval_one_per_operation",
            ),
        ]
        indexes = [
            # read by the queue and by the expiry job
            models.Index(fields=["deadline_at", "id"], name="approval_queue", condition=Q(state="waiting")),
            models.Index(fields=["run_id"], name="approval_of_run"),
            models.Index(fields=["operation_id"], name="approval_of_operation"),  # read by each look and dispatch
            models.Index(fields=["project", "-requested_at", "-id"], name="approval_list"),  # read by the API
        ]
        permissions = [
            ("decide_approval", "Can approve and reject"),
            ("break_glass_approval", "Can approve alone in an emergency"),
        ]

    def __str__(self) -> str:
        return f"{self.tool} {self.state}"


class Decision(models.Model):
    """One try to decide, applied or not: late, repeated and forbidden tries stay on record with the reason.

    An applied one is a person's vote, or an edit. A trigger takes votes only while the request waits and needs them.
    """

    approval = models.ForeignKey(Approval, on_delete=models.PROTECT, related_name="decisions")
    actor = models.CharField(max_length=200)
    verdict = models.CharField(
        max_length=10, choices=[("approve", "approve"), ("reject", "reject"), ("edit", "edit the arguments")]
    )
    reason = models.TextField(blank=True, default="")
    via = models.CharField(max_length=20, help_text="admin, api or command")
    at = models.DateTimeField(db_default=Now())
    applied = models.BooleanField()
    broke_glass = models.BooleanField(
        default=False, db_default=False, help_text="Alone, in an emergency, past group and quorum."
    )
    refusal = models.CharField(max_length=40, blank=True, default="", help_text="Why it was not applied.")

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["approval", "actor", "verdict"], condition=Q(applied=True), name="one_applied_decision_each"
            ),
            models.CheckConstraint(
                condition=Q(broke_glass=False) | Q(verdict="approve") & ~Q(reason=""), name="broken_glass_has_a_reason"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.actor}: {self.verdict}"


def requests_alone() -> list[str]:
    return [Channel.Event.APPROVAL_REQUESTED.value]


class Channel(models.Model):
    """Where a project's news is told: an address or an HTTP endpoint. Changed by making another one."""

    class Kind(models.TextChoices):
        EMAIL = "email", "e-mail"
        WEBHOOK = "webhook"

    class Event(models.TextChoices):
        APPROVAL_REQUESTED = "approval.requested", "an approval was requested"
        RUN_ENDED = "run.ended", "a run has ended"
        OPERATION_UNCERTAIN = "operation.uncertain", "an operation became uncertain"

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    project = models.CharField(max_length=100, help_text="Project slug.")
    events = ArrayField(
        models.CharField(max_length=30, choices=Event.choices),
        default=requests_alone,
        db_default=Value([Event.APPROVAL_REQUESTED.value], ArrayField(models.CharField(max_length=30))),
        help_text="What is told there. E-mail tells of approvals only.",
    )
    group = models.CharField(
        max_length=150,
        blank=True,
        default="",
        help_text="Of the requests, only those that ask this group; empty: all of them.",
    )
    kind = models.CharField(max_length=10, choices=Kind.choices)
    target = models.CharField(
        max_length=500,
        blank=True,
        default="",
        help_text="Address or URL. An e-mail channel without one writes to the members of the request's group.",
    )
    secret_env = models.CharField(
        max_length=100,
        blank=True,
        default="",
        help_text="Webhooks: the environment variable that holds the signing secret, KERNEL_WEBHOOK_….",
    )
    created_at = models.DateTimeField(db_default=Now())
    created_by = models.CharField(max_length=200)
    retired_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        verbose_name = "notification channel"
        constraints = [
            models.CheckConstraint(
                condition=Q(kind="email", secret_env="") | Q(kind="webhook") & ~Q(target="") & ~Q(secret_env=""),
                name="channel_webhook_is_signed",
            ),
        ]
        indexes = [
            models.Index(fields=["project"], name="channel_in_force", condition=Q(retired_at__isnull=True)),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.target or self.group or 'approvers'}"


class Delivery(models.Model):
    """One message to one target, written with what it tells and sent at least once.

    It tells of a request, or of an event of the journal: those are written by a trigger in the transaction that writes
    the event. The body is fixed when written. A lease is `next_attempt_at` in the future with a token; a lost one
    changes nothing.
    """

    class Occasion(models.TextChoices):
        REQUESTED = "requested"
        REMINDER = "reminder"
        RUN_ENDED = "run_ended", "run ended"
        UNCERTAIN = "uncertain"

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    approval = models.ForeignKey(Approval, null=True, on_delete=models.PROTECT, related_name="deliveries")
    event_id = models.UUIDField(null=True, help_text="The event that it tells of, where that is no request.")
    project = models.CharField(max_length=100, null=True, help_text="Filled in by the database where it is empty.")
    run_id = models.UUIDField(null=True)
    channel = models.ForeignKey(Channel, on_delete=models.PROTECT, related_name="deliveries")
    occasion = models.CharField(max_length=10, choices=Occasion.choices)
    target = models.CharField(max_length=500)
    body = models.TextField()
    created_at = models.DateTimeField(db_default=Now())
    next_attempt_at = models.DateTimeField(null=True, help_text="Empty: it is over.")
    lease_token = models.UUIDField(null=True)
    attempts = models.PositiveIntegerField(default=0)
    sent_at = models.DateTimeField(null=True)
    dropped = models.CharField(max_length=40, blank=True, default="", help_text="Why it will not be sent any more.")
    last_error = models.CharField(max_length=300, blank=True, default="")

    class Meta:
        verbose_name_plural = "deliveries"
        constraints = [
            models.UniqueConstraint(fields=["approval", "channel", "occasion", "target"], name="delivery_once_written"),
            models.UniqueConstraint(
                fields=["event_id", "channel"], condition=Q(event_id__isnull=False), name="delivery_once_per_event"
            ),
            models.CheckConstraint(
                condition=Q(approval__isnull=False, event_id__isnull=True)
                | Q(approval__isnull=True, event_id__isnull=False),
                name="delivery_tells_of_one_thing",
            ),
            models.CheckConstraint(
                condition=Q(next_attempt_at__isnull=False, sent_at__isnull=True, dropped="")
                | Q(next_attempt_at__isnull=True, sent_at__isnull=False, dropped="")
                | Q(next_attempt_at__isnull=True, sent_at__isnull=True) & ~Q(dropped=""),
                name="delivery_is_open_sent_or_dropped",
            ),
        ]
        indexes = [
            # read by the sender's claim
            models.Index(fields=["next_attempt_at"], name="delivery_due", condition=Q(next_attempt_at__isnull=False)),
            models.Index(fields=["run_id"], name="delivery_of_run"),  # read by the console and by purge
        ]

    def __str__(self) -> str:
        return f"{self.occasion} to {self.target}"

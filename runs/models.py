"""What the kernel knows of agents, runs and operations. Facts: states move by the services' counted UPDATEs only."""

from __future__ import annotations

from typing import Literal

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from kernel_project.primitives.ids import new_id


class Project(models.Model):
    """A tenant: whatever belongs to one project does not exist for another."""

    slug = models.SlugField(primary_key=True, max_length=100)
    name = models.CharField(max_length=200)
    created_at = models.DateTimeField(db_default=Now())

    def __str__(self) -> str:
        return self.slug


class ApiKey(models.Model):
    """A key of the JSON API. Only the hash of its secret is kept; the key itself is shown once."""

    prefix = models.CharField(max_length=16, unique=True, help_text="The part of the key that may be shown.")
    secret_hash = models.CharField(max_length=64)
    project = models.ForeignKey(Project, on_delete=models.PROTECT)
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        help_text="The person behind the key.",
    )
    name = models.CharField(max_length=100)
    scopes = ArrayField(models.CharField(max_length=40))
    created_at = models.DateTimeField(db_default=Now())
    created_by = models.CharField(max_length=200, blank=True, default="", db_default="")
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    revoked_by = models.CharField(max_length=200, blank=True, default="", db_default="")
    last_used_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix}…)"


class Agent(models.Model):
    """A named agent of a project; what it does stands in its versions."""

    project = models.ForeignKey(Project, on_delete=models.PROTECT)
    name = models.CharField(max_length=100)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["project", "name"], name="agent_name")]

    def __str__(self) -> str:
        return self.name


class AgentVersion(models.Model):
    """One definition of an agent, never changed: model, instructions, tools, limits (see contracts.AgentDefinition)."""

    agent = models.ForeignKey(Agent, on_delete=models.PROTECT, related_name="versions")
    version = models.PositiveIntegerField()
    definition = models.JSONField()
    digest = models.CharField(max_length=64, help_text="SHA-256 of the canonical definition.")
    created_at = models.DateTimeField(db_default=Now())
    created_by = models.CharField(max_length=200)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["agent", "version"], name="agent_version")]
        ordering = ["agent_id", "-version"]

    def __str__(self) -> str:
        return f"{self.agent} v{self.version}"


class ModelPrice(models.Model):
    """What a model costs, for a million tokens each. All prices of a project are in one currency, of its choice."""

    project = models.ForeignKey(Project, on_delete=models.PROTECT)
    model = models.CharField(max_length=200, help_text="As agents name it, such as openai:NAME.")
    input = models.DecimalField(max_digits=14, decimal_places=6)
    output = models.DecimalField(max_digits=14, decimal_places=6)
    cached_input = models.DecimalField(
        max_digits=14, decimal_places=6, null=True, blank=True, help_text="Empty: as much as other input."
    )
    changed_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = [models.UniqueConstraint(fields=["project", "model"], name="model_price")]

    def __str__(self) -> str:
        return f"{self.model}: {self.input} in, {self.output} out"


class McpServer(models.Model):
    """An MCP server that tools may live on; secrets in its configuration are references, never values."""

    project = models.ForeignKey(Project, on_delete=models.PROTECT)
    name = models.CharField(max_length=100)
    configuration = models.JSONField(help_text="See boundary.mcp_sessions.McpServerConfig.")
    enabled = models.BooleanField(default=True)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        verbose_name = "MCP server"
        constraints = [models.UniqueConstraint(fields=["project", "name"], name="mcp_server_name")]

    def __str__(self) -> str:
        return self.name


class Effect(models.TextChoices):
    """Whether a call can change anything outside."""

    READ = "read"
    WRITE = "write"


class Kind(models.TextChoices):
    """Which adapter in `boundary/effects/` carries a call out."""

    MODEL = "model"
    MCP = "mcp", "MCP"
    HTTP = "http", "HTTP"
    PYTHON = "python"
    SANDBOX = "sandbox"
    AGENT = "agent", "another agent"


class Tool(models.Model):
    """A registered tool with its declaration. Only this row, never a name or a server's hint, raises trust."""

    project = models.ForeignKey(Project, on_delete=models.PROTECT)
    kind = models.CharField(max_length=10, choices=[c for c in Kind.choices if c[0] != "model"])
    server = models.ForeignKey(McpServer, null=True, blank=True, on_delete=models.PROTECT)
    name = models.CharField(max_length=255, help_text="server/tool for MCP, a plain name otherwise.")
    remote_name = models.CharField(max_length=255, help_text="What the other side calls it.")
    exposed_name = models.CharField(max_length=64, help_text="What the model calls it.")
    description = models.TextField(blank=True, default="")
    input_schema = models.JSONField()
    definition_digest = models.CharField(max_length=64, help_text="Pins server, name, description and schema.")
    effect = models.CharField(max_length=5, choices=Effect.choices, default=Effect.WRITE)
    idempotent_for_seconds = models.PositiveIntegerField(
        null=True, blank=True, help_text="How long the other side keeps idempotency keys; empty: it knows none."
    )
    probe = models.JSONField(null=True, blank=True, help_text="How to look for the effect by key; empty: impossible.")
    replay_safe = models.BooleanField(default=False, help_text="A sandboxed command that may run again from the start.")
    key_argument = models.CharField(
        max_length=200, blank=True, default="", help_text="Argument that the operation's id is written into."
    )
    key_template = models.CharField(
        max_length=200, blank=True, default="", help_text="Text added to it; {operation_id} and {value} are replaced."
    )
    timeout_seconds = models.PositiveIntegerField(default=60)
    configuration = models.JSONField(default=dict, blank=True)
    compensation = models.JSONField(
        null=True, blank=True, help_text="The tool and the arguments that undo its effect; empty: it cannot be undone."
    )
    enabled = models.BooleanField(default=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["project", "name"], name="tool_name"),
            models.UniqueConstraint(fields=["project", "exposed_name"], name="tool_exposed_name"),
        ]

    def __str__(self) -> str:
        return self.name


class Run(models.Model):
    """One durable run of an agent: started by an application, carried by a Temporal workflow of the same id."""

    class State(models.TextChoices):
        STARTING = "starting"
        RUNNING = "running"
        CANCELLING = "cancelling"
        COMPLETED = "completed"
        FAILED = "failed"
        CANCELLED = "cancelled"

    LIVE = (State.STARTING, State.RUNNING, State.CANCELLING)
    ENDED = (State.COMPLETED, State.FAILED, State.CANCELLED)

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    project = models.ForeignKey(Project, on_delete=models.PROTECT)
    agent_version = models.ForeignKey(AgentVersion, on_delete=models.PROTECT)
    state = models.CharField(max_length=10, choices=State.choices, default=State.STARTING)
    input_digest = models.CharField(max_length=64, help_text="Artifact with the input text.")
    result_digest = models.CharField(max_length=64, blank=True, default="")
    failure_code = models.CharField(max_length=60, blank=True, default="")
    failure_message = models.TextField(blank=True, default="")
    workspace = models.CharField(max_length=100, blank=True, default="", help_text="Folder name; empty: its own.")
    waiting_for = models.CharField(max_length=200, blank=True, default="", help_text="Why it does not move.")
    started_by = models.CharField(max_length=200)
    created_at = models.DateTimeField(db_default=Now())
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)
    cancel_requested_at = models.DateTimeField(null=True)
    cancel_requested_by = models.CharField(max_length=200, blank=True, default="")
    cancel_reason = models.TextField(blank=True, default="")
    turn = models.PositiveIntegerField(default=0, help_text="The turn that was last begun.")
    wake_since = models.DateTimeField(null=True, help_text="News that its workflow has not looked at in time.")
    looked_at = models.DateTimeField(null=True, help_text="When Temporal was last asked why it does not move.")
    compensates_id = models.UUIDField(null=True, help_text="The operation whose effect this run is to undo.")
    parent_id = models.UUIDField(null=True, help_text="The run that let this one do a task.")
    parent_operation_id = models.UUIDField(null=True, help_text="The call of that run's model.")
    depth = models.PositiveSmallIntegerField(default=0, db_default=0, help_text="How many runs are above it.")
    build_id = models.CharField(
        max_length=100, blank=True, default="", db_default="", help_text="Build of the worker that took its last turn."
    )
    resumes = models.PositiveIntegerField(
        default=0, db_default=0, help_text="How often it was to go on after it failed."
    )
    messages = models.PositiveIntegerField(default=0, db_default=0, help_text="Said to it since its start.")
    resuming_since = models.DateTimeField(null=True, help_text="A resume that Temporal has not acknowledged.")
    resumed_by = models.CharField(max_length=200, blank=True, default="", db_default="")
    resumed_by_type = models.CharField(max_length=10, blank=True, default="", db_default="")

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(state__in=("completed", "failed", "cancelled"), ended_at__isnull=False)
                | Q(state__in=("starting", "running", "cancelling"), ended_at__isnull=True),
                name="run_ended_has_a_time",
            ),
            models.CheckConstraint(
                condition=~Q(state__in=("cancelling", "cancelled")) | Q(cancel_requested_at__isnull=False),
                name="run_cancel_was_requested",
            ),
            models.CheckConstraint(condition=~Q(state="failed") | ~Q(failure_code=""), name="run_failure_is_named"),
            models.CheckConstraint(
                condition=Q(parent_id__isnull=True, parent_operation_id__isnull=True, depth=0)
                | Q(parent_id__isnull=False, parent_operation_id__isnull=False, depth__gte=1),
                name="run_child_has_a_parent",
            ),
            # one call, one child, whatever is delivered twice
            models.UniqueConstraint(
                fields=["parent_operation_id"],
                condition=Q(parent_operation_id__isnull=False),
                name="run_child_of_call",
            ),
        ]
        indexes = [
            models.Index(fields=["project", "-id"], name="run_list"),  # read by the API's list
            # read by the sweep of lost wake-ups and by the home page
            models.Index(fields=["wake_since"], name="run_wake", condition=Q(wake_since__isnull=False)),
            # read by the page of an operation, and before another compensation of it is begun
            models.Index(fields=["compensates_id"], name="run_compensates", condition=Q(compensates_id__isnull=False)),
            # read by a cancel, the list of children, and before another child is started
            models.Index(fields=["parent_id", "id"], name="run_children", condition=Q(parent_id__isnull=False)),
            # read by the sweep of resumes that nobody confirmed
            models.Index(fields=["resuming_since"], name="run_resuming", condition=Q(resuming_since__isnull=False)),
            # read by the purge
            models.Index(fields=["project", "ended_at", "id"], name="run_ended", condition=Q(ended_at__isnull=False)),
            models.Index(
                fields=["state", "created_at"],
                name="run_live",
                condition=Q(state__in=("starting", "running", "cancelling")),
            ),
        ]
        permissions = [
            ("start_run", "Can start runs"),
            ("cancel_run", "Can cancel runs"),
            ("resume_run", "Can let failed runs go on"),
            ("message_run", "Can say something to running runs"),
        ]

    def __str__(self) -> str:
        return str(self.id)


class RunMessage(models.Model):
    """Something said to a run that is under way; `turn` is the one whose model call reads it first."""

    run = models.ForeignKey(Run, on_delete=models.PROTECT, db_index=False)
    number = models.PositiveIntegerField(help_text="1, 2, … in the run.")
    digest = models.CharField(max_length=64, help_text="Artifact with the text.")
    sent_by = models.CharField(max_length=200)
    key_hash = models.CharField(max_length=64, blank=True, default="")
    turn = models.PositiveIntegerField(null=True)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["run", "number"], name="run_message_number"),
            models.UniqueConstraint(
                fields=["run", "sent_by", "key_hash"], condition=~Q(key_hash=""), name="run_message_key"
            ),
        ]

    def __str__(self) -> str:
        return f"message {self.number} to {self.run_id}"


class News(models.Model):
    """One thing that a run's workflow should look at. Written with what it tells, deleted by the look that saw it.

    Rows are only added and deleted, and no run's row is locked for them: whoever decides, settles or cancels needs no
    order of locks, and news that commits during a look stays behind for the next one.
    """

    run_id = models.UUIDField()
    at = models.DateTimeField(db_default=Now())
    tells = models.PositiveIntegerField(default=0, help_text="How often the sweep has told it again.")
    tell_at = models.DateTimeField(help_text="When the sweep tells it again if nobody has looked.")

    class Meta:
        verbose_name_plural = "news"
        indexes = [
            models.Index(fields=["run_id"], name="news_of_run"),  # read by the look
            models.Index(fields=["tell_at"], name="news_due"),  # read by the sweep
        ]

    def __str__(self) -> str:
        return f"news for {self.run_id}"


class IdempotencyKey(models.Model):
    """A client's key for one start: the same key finds the same run, another body under it is refused."""

    project = models.ForeignKey(Project, on_delete=models.PROTECT)
    owner = models.CharField(max_length=200, help_text="The caller: keys are not shared between callers.")
    key_hash = models.CharField(max_length=64, help_text="SHA-256 of the key: long keys fit, twins stay different.")
    body_hash = models.CharField(max_length=64)
    run_id = models.UUIDField()
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = [models.UniqueConstraint(fields=["project", "owner", "key_hash"], name="idempotency_key")]
        indexes = [models.Index(fields=["run_id"], name="idempotency_key_of_run")]  # read by the purge

    def __str__(self) -> str:
        return f"{self.owner} {self.key_hash[:8]}"


OperationState = Literal[
    "proposed", "denied", "awaiting_approval", "rejected", "expired", "withdrawn", "blocked",
    "dispatched", "succeeded", "tool_error", "failed", "uncertain", "reconciled",
]  # fmt: skip


class Operation(models.Model):
    """One intended effect, for ever the same id. Its intent is committed before the effect, its outcome after.

    The states and who moves them are drawn in docs/state-machines.md. `attempt` counts dispatches and fences late
    finishers: a settle is for (dispatched, attempt n) or changes nothing.
    """

    class State(models.TextChoices):
        PROPOSED = "proposed"
        DENIED = "denied"
        AWAITING_APPROVAL = "awaiting_approval"
        REJECTED = "rejected"
        EXPIRED = "expired"
        WITHDRAWN = "withdrawn"
        BLOCKED = "blocked"
        DISPATCHED = "dispatched"
        SUCCEEDED = "succeeded"
        TOOL_ERROR = "tool_error"
        FAILED = "failed"
        UNCERTAIN = "uncertain"
        RECONCILED = "reconciled"

    class Verdict(models.TextChoices):
        OCCURRED = "occurred"
        NONE = "none"
        UNKNOWN = "unknown"

    id = models.UUIDField(primary_key=True, editable=False)
    # Each move of an operation writes to all its indexes, so there are few; the constraints and indexes below serve.
    run = models.ForeignKey(Run, on_delete=models.PROTECT, related_name="operations", db_index=False)
    project = models.ForeignKey(Project, on_delete=models.PROTECT, db_index=False)
    turn = models.PositiveIntegerField()
    position = models.PositiveIntegerField(help_text="0 is the model call of the turn.")
    kind = models.CharField(max_length=10, choices=Kind.choices)
    tool = models.ForeignKey(Tool, null=True, on_delete=models.PROTECT, db_index=False)
    name = models.CharField(max_length=255, help_text="server/tool, or provider:model.")
    call_label = models.CharField(max_length=200, blank=True, default="", help_text="The provider's id, a label only.")
    definition_digest = models.CharField(max_length=64, blank=True, default="")
    arguments_digest = models.CharField(
        max_length=64, help_text="Artifact with the canonical arguments; also their hash."
    )
    call_digest = models.CharField(
        max_length=64, blank=True, default="", help_text="Hash of the arguments as the model gave them: finds twins."
    )
    unique_key = models.CharField(
        max_length=64, blank=True, default="", help_text="Hash of the tool's `unique_by` values; empty: it names none."
    )
    twin_id = models.UUIDField(null=True, help_text="An earlier operation with the same unique key.")
    compensates_id = models.UUIDField(null=True, help_text="The operation whose effect this one is to undo.")
    actor = models.CharField(max_length=200)
    effect = models.CharField(max_length=5, choices=Effect.choices)
    idempotent_for_seconds = models.PositiveIntegerField(null=True)
    probes = models.BooleanField(default=False)
    declared = models.JSONField(
        null=True, help_text="What else its tool's registration promised; empty: nobody kept it then."
    )
    policy = models.CharField(max_length=200, blank=True, default="", help_text="Policy and version, or the default.")
    policy_id = models.UUIDField(null=True, help_text="Empty: no rule matched.")
    policy_version = models.PositiveIntegerField(null=True)
    policy_answer = models.CharField(max_length=10, blank=True, default="")
    edited_by = models.CharField(
        max_length=200,
        blank=True,
        default="",
        db_default="",
        help_text="Who changed the arguments before anything left.",
    )
    state = models.CharField(max_length=20, choices=State.choices)
    attempt = models.PositiveIntegerField(default=0)
    proposed_at = models.DateTimeField(db_default=Now())
    first_dispatched_at = models.DateTimeField(null=True)
    dispatched_at = models.DateTimeField(null=True)
    sending_at = models.DateTimeField(null=True, help_text="When the current attempt was about to send.")
    deadline_at = models.DateTimeField(null=True, help_text="When the current attempt gives up.")
    settled_at = models.DateTimeField(null=True)
    earlier_unclear = models.BooleanField(
        default=False, db_default=False, help_text="Whether an attempt before the current one may have had its effect."
    )
    result_digest = models.CharField(max_length=64, blank=True, default="")
    result_invalid = models.CharField(max_length=200, blank=True, default="")
    error_class = models.CharField(max_length=60, blank=True, default="")
    error_message = models.TextField(blank=True, default="")
    usage = models.JSONField(default=dict, help_text="Tokens and finish reason of a model call.")
    tokens_charged = models.BigIntegerField(
        default=0, db_default=0, help_text="What counts against the run's limit: used, or reserved where nobody knows."
    )
    tokens_reserved = models.BigIntegerField(default=0, db_default=0, help_text="Of them, for the current attempt.")
    cost_charged = models.DecimalField(max_digits=24, decimal_places=9, default=0, db_default=0)
    cost_reserved = models.DecimalField(max_digits=24, decimal_places=9, default=0, db_default=0)
    verdict = models.CharField(max_length=10, choices=Verdict.choices, blank=True, default="")
    reconciled_by = models.CharField(max_length=200, blank=True, default="")
    reconciled_at = models.DateTimeField(null=True)
    note = models.TextField(blank=True, default="")
    evidence_digest = models.CharField(max_length=64, blank=True, default="", help_text="Artifact behind the verdict.")
    probe_attempts = models.PositiveIntegerField(default=0)
    next_probe_at = models.DateTimeField(null=True)
    needs_attention = models.BooleanField(default=False)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["run", "turn", "position"], name="operation_place"),
            # The repeat guard: the same write is never out twice while the fate of one of them is not known.
            models.UniqueConstraint(
                fields=["project", "name", "call_digest"],
                condition=Q(state__in=("dispatched", "uncertain"), effect="write") & ~Q(call_digest=""),
                name="operation_no_twin_in_flight",
            ),
            models.CheckConstraint(
                condition=~Q(state__in=("dispatched", "succeeded", "tool_error", "failed", "uncertain", "reconciled"))
                | Q(
                    attempt__gte=1,
                    dispatched_at__isnull=False,
                    first_dispatched_at__isnull=False,
                    deadline_at__isnull=False,
                ),
                name="operation_dispatch_is_whole",
            ),
            models.CheckConstraint(
                condition=~Q(state__in=("succeeded", "tool_error"))
                | ~Q(result_digest="") & Q(settled_at__isnull=False),
                name="operation_answer_is_kept",
            ),
            models.CheckConstraint(
                condition=~Q(state__in=("failed", "uncertain")) | ~Q(error_class="") & Q(settled_at__isnull=False),
                name="operation_failure_is_named",
            ),
            models.CheckConstraint(
                condition=Q(state="reconciled", reconciled_at__isnull=False) & ~Q(verdict="") & ~Q(reconciled_by="")
                | ~Q(state="reconciled"),
                name="operation_verdict_has_an_author",
            ),
            models.CheckConstraint(
                condition=~Q(state="uncertain") | Q(effect="write"), name="operation_uncertain_is_write"
            ),
        ]
        indexes = [
            models.Index(
                fields=["project", "run", "turn", "position"], name="operation_list"
            ),  # read by the API's list
            # read by the uncertain queue and the probes
            models.Index(fields=["settled_at"], name="operation_uncertain", condition=Q(state="uncertain")),
            # read by `unique_by`
            models.Index(fields=["project", "unique_key"], name="operation_unique_key", condition=~Q(unique_key="")),
        ]
        permissions = [
            ("reconcile_operation", "Can settle uncertain operations"),
            ("compensate_operation", "Can undo effects of operations"),
        ]

    def __str__(self) -> str:
        return f"{self.name} {self.state}"


class Artifact(models.Model):
    """A claim of one run on one content: prompt, arguments, result or log. The bytes are found by their digest.

    Small bodies stand in the row, so that they commit with what refers to them; larger ones are in the object store
    and were put there before this row.
    """

    class Kind(models.TextChoices):
        INPUT = "input"
        ARGUMENTS = "arguments"
        RESULT = "result"
        LOG = "log"

    digest = models.CharField(max_length=64)
    run = models.ForeignKey(Run, on_delete=models.PROTECT, related_name="artifacts")
    kind = models.CharField(max_length=10, choices=Kind.choices)
    size = models.BigIntegerField(help_text="Bytes.")
    media_type = models.CharField(max_length=100)
    body = models.BinaryField(null=True)
    created_at = models.DateTimeField(db_default=Now())
    purged_at = models.DateTimeField(null=True, help_text="Its retention is over: the bytes are gone, the claim stays.")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["run", "digest", "kind"], name="artifact_claim")]
        # read by the sweep of the object store
        indexes = [models.Index(fields=["digest"], name="artifact_stored", condition=Q(body__isnull=True))]

    def __str__(self) -> str:
        return f"artifact://sha256/{self.digest}"


class Sandbox(models.Model):
    """One sandbox that was told as created and not yet as destroyed: made with the first event, deleted with the last.

    Whoever deletes the row tells the end, so it is told once, whoever finds it: the worker, or the sweep after it died.
    """

    operation_id = models.UUIDField()
    attempt = models.PositiveIntegerField()
    driver = models.CharField(max_length=20)
    place = models.CharField(max_length=200, help_text="The machine, as far as processes can see each other.")
    worker = models.CharField(max_length=100, help_text="The process that runs it.")
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        verbose_name_plural = "sandboxes"
        constraints = [models.UniqueConstraint(fields=["operation_id", "attempt"], name="sandbox_of_attempt")]

    def __str__(self) -> str:
        return f"sandbox of {self.operation_id}, attempt {self.attempt}"


class SandboxReport(models.Model):
    """What the workers of one machine found out about its sandbox, told again and again while they live."""

    place = models.CharField(max_length=200, primary_key=True)
    sentence = models.CharField(max_length=300)
    unavailable = models.TextField(blank=True, default="", help_text="Why no command is run there; empty: they are.")
    problems = models.JSONField(default=list)
    reported_at = models.DateTimeField(db_default=Now())

    def __str__(self) -> str:
        return self.place


from runs.keeping.models import AuditEntry as AuditEntry  # noqa: E402
from runs.keeping.models import Hold as Hold  # noqa: E402  Django looks for the tables of an app here
from runs.keeping.models import Purge as Purge  # noqa: E402
from runs.keeping.models import RetentionRule as RetentionRule  # noqa: E402
from runs.keeping.models import Tombstone as Tombstone  # noqa: E402

"""Start runs: the row first, then Temporal. A start that nobody acknowledged is never called a run."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from django.db import transaction
from django.db.models.functions import Now

from kernel_project.primitives.canonical import canonical_json, sha256_hex
from kernel_project.primitives.clock import now
from kernel_project.primitives.errors import Conflict, Invalid, NotFound, Unavailable
from runs.boundary import artifacts, workspaces
from runs.contracts import AgentDefinition, Limits
from runs.loop import queues, temporal
from runs.loop.contracts import Plan, RunInput
from runs.loop.turns import begin_run
from runs.models import AgentVersion, Artifact, IdempotencyKey, Operation, Run, Tombstone

logger = logging.getLogger(__name__)

INPUT_BYTES_MAX = 512 * 1024
KEY_CHARS_MAX = 1_000
UNCLEAR_AFTER_SECONDS = 10.0  # a start younger than this may still be on its way
SWEEP_BATCH_MAX = 100  # unclear starts that one sweep settles
IN_PROGRESS = "a request with this Idempotency-Key is being worked on; ask again in a few seconds"


@dataclass(frozen=True)
class Parent:
    """The call of another run's model that the run is started for."""

    run_id: UUID
    operation_id: UUID
    depth: int  # of the child
    children_max: int  # of the parent


@dataclass(frozen=True)
class StartRequest:
    """What an application, or the model of another run, asks for.

    `owner` is the caller's identity, for a child the one who started the first run; `version` empty the agent's newest.
    """

    project: str
    agent: str
    input: str
    owner: str
    version: int | None = None
    workspace: str = ""
    key: str = ""
    parent: Parent | None = None

    @property
    def key_owner(self) -> str:
        """Whose key it is. No caller has a name like a parent's, so none can take its keys."""
        return self.owner if self.parent is None else f"\nrun {self.parent.run_id}"

    def body_hash(self) -> str:
        """Over all that the caller asked for, so that a key cannot come back with another body."""
        body = [self.agent, self.version, self.input, self.workspace]
        return sha256_hex(canonical_json(body).encode())


@dataclass(frozen=True)
class Started:
    """The run, and whether it was there before."""

    run: Run
    replayed: bool


class KeyReused(Invalid):
    """The idempotency key was used before with another body."""

    code = "idempotency_key_reused"


class ParentStopped(Conflict):
    """The run that wants a child has ended, or is to stop: nothing of it starts any more."""

    code = "parent_stopped"


class ParentLate(ParentStopped):
    """The time of the run that wants a child is over, and its children were told to stop before this one was there."""

    code = "parent_late"


class TooManyChildren(Conflict):
    """The run that wants a child has started as many as it may."""

    code = "too_many_children"


class RunPurged(Conflict):
    """The first request with this key made a run, whose retention is over."""

    code = "run_purged"


class KeyInProgress(Conflict):
    """The first request with this key has not been answered yet."""

    code = "idempotency_key_in_progress"


def start(asked: StartRequest) -> Started:
    """Start a run and return it once Temporal has acknowledged it.

    The same key with the same body finds the same run. Raises Invalid for bad input, NotFound for an unknown agent,
    KeyReused, RunPurged, KeyInProgress, and temporal.Down or temporal.Unclear when Temporal did not confirm: then there
    is no run that anybody could see, and the same key may be tried again.
    """
    return acknowledged(*_write(asked))


def acknowledged(run: Run, fresh: bool) -> Started:
    """Hand a written run to Temporal, once; one that is not `fresh` may have been handed over before. See `start`."""
    if not fresh and run.state != Run.State.STARTING:
        return Started(run, replayed=True)
    if not fresh and now() - run.created_at < timedelta(seconds=UNCLEAR_AFTER_SECONDS):
        raise KeyInProgress(IN_PROGRESS)
    given = run_input(run)
    try:
        temporal.start(given)
    except temporal.Down:
        if fresh:
            forget(run.id)
        raise
    if not confirm(run.id):
        raise temporal.Unclear("the start took so long that it was given up; try again with the same Idempotency-Key")
    run.refresh_from_db()
    return Started(run, replayed=not fresh)


def _write(asked: StartRequest) -> tuple[Run, bool]:
    """The row of the run and, in the same transaction, of its key; or what an earlier request wrote."""
    version = _check(asked)
    body = artifacts.stage(asked.input.encode())
    parent = asked.parent
    with transaction.atomic():
        if parent is not None:
            _hold_parent(parent)
        run = Run(
            project_id=asked.project,
            agent_version=version,
            input_digest=body.digest,
            started_by=asked.owner,
            workspace=asked.workspace,
            parent_id=parent.run_id if parent else None,
            parent_operation_id=parent.operation_id if parent else None,
            depth=parent.depth if parent else 0,
        )
        if asked.key and (known := _take_key(asked, run.id)) is not None:
            return known, False
        if parent is not None and Run.objects.filter(parent_id=parent.run_id).count() >= parent.children_max:
            raise TooManyChildren(f"this run may let other agents do {parent.children_max} tasks, and has")
        run.save(force_insert=True)
        artifacts.claim(run.id, Artifact.Kind.INPUT, [body])
    return run, True


def _hold_parent(parent: Parent) -> None:
    """Lock the parent first of all: a cancel of it finds the child, or has been before and there is none."""
    live = Run.objects.select_for_update(no_key=True).filter(id=parent.run_id, state=Run.State.RUNNING)
    run = live.filter(cancel_requested_at__isnull=True).first()
    if run is None:
        raise ParentStopped("the run has ended or was asked to stop: it starts no other one")
    if not Operation.objects.filter(id=parent.operation_id, state=Operation.State.DISPATCHED).exists():
        raise ParentStopped("the call has an outcome already: nothing is started for it")
    limits = Limits.model_validate(AgentVersion.objects.get(id=run.agent_version_id).definition["limits"])
    if limits.wall_seconds_max:
        began_too_early = Now() - timedelta(seconds=limits.wall_seconds_max)
        if Run.objects.filter(id=run.id, created_at__lte=began_too_early).exists():
            raise ParentLate("the run's time is over: it starts no other one")


def _take_key(asked: StartRequest, run_id: UUID) -> Run | None:
    """Claim the key for this run, waiting for a rival's transaction; or the run that has it."""
    key, created = IdempotencyKey.objects.get_or_create(
        project_id=asked.project,
        owner=asked.key_owner,
        key_hash=sha256_hex(asked.key.encode()),
        defaults={"body_hash": asked.body_hash(), "run_id": run_id},
    )
    if created:
        return None
    if key.body_hash != asked.body_hash():
        raise KeyReused("this Idempotency-Key was used before with another body; use a new key for a new request")
    run = _run_of(key)
    if run is None and Tombstone.objects.filter(run_id=key.run_id, operation_id__isnull=True).exists():
        raise RunPurged("the run of this Idempotency-Key has been purged; it is not started again")
    if run is None:  # its start was refused and forgotten: the key may be used again, by one of those who try
        if IdempotencyKey.objects.filter(id=key.id, run_id=key.run_id).update(run_id=run_id) == 1:
            return None
        key.refresh_from_db()  # a rival was faster, and has committed its run
        run = _run_of(key)
        if run is None:
            raise KeyInProgress(IN_PROGRESS)
    return run


def _run_of(key: IdempotencyKey) -> Run | None:
    return Run.objects.select_related("agent_version__agent").filter(id=key.run_id).first()


def _check(asked: StartRequest) -> AgentVersion:
    if len(asked.key) > KEY_CHARS_MAX:
        raise Invalid(f"an Idempotency-Key has at most {KEY_CHARS_MAX} characters")
    if "\x00" in asked.input or len(asked.input.encode("utf-8", "surrogatepass")) > INPUT_BYTES_MAX:
        raise Invalid(f"the input must be text of at most {INPUT_BYTES_MAX} bytes, without NUL")
    if asked.workspace:
        workspaces.check_name(asked.workspace, asked.project)
    versions = AgentVersion.objects.select_related("agent").filter(
        agent__project_id=asked.project, agent__name=asked.agent
    )
    if asked.version is not None:
        versions = versions.filter(version=asked.version)
    version = versions.order_by("-version").first()
    if version is None:
        raise NotFound(f"there is no agent {asked.agent!r} (of that version) in this project", code="unknown_agent")
    return version


def run_input(run: Run) -> RunInput:
    """What the workflow of a run is started with."""
    definition = AgentDefinition.model_validate(run.agent_version.definition)
    seconds = definition.limits.wall_seconds_max
    return RunInput(
        plan=Plan(
            run_id=run.id,
            limits=definition.limits,
            ends_at=run.created_at + timedelta(seconds=seconds) if seconds else None,
            on_uncertain=definition.on_uncertain,
            model_timeout_seconds=definition.model_timeout_seconds,
            model_queue=queues.of_models(),
        )
    )


def confirm(run_id: UUID) -> bool:
    """Temporal has the run: it is running, with its event. The workflow may have said so first.

    False if the row is gone: a sweep found no workflow and forgot the start while its request hung. The workflow finds
    no row either, and ends without having done anything.
    """
    with transaction.atomic():
        run = Run.objects.select_related("agent_version__agent").filter(id=run_id).first()
        if run is not None:
            begin_run(run)
    return run is not None


def forget(run_id: UUID) -> None:
    """Remove the row of a start that provably never reached Temporal: there was no run, and no event of it."""
    with transaction.atomic():
        removable = Run.objects.select_for_update().filter(id=run_id, state=Run.State.STARTING)
        if removable.exists():
            Artifact.objects.filter(run_id=run_id).delete()
            removable.delete()


def settle_unclear_starts(limit: int = SWEEP_BATCH_MAX) -> int:
    """Ask Temporal about starts that nobody confirmed; returns how many were settled.

    A workflow that is there makes the run running. One that is not was never started, so the row goes, and the
    client's next try with its key starts it anew.
    """
    old = Run.objects.filter(state=Run.State.STARTING, created_at__lt=Now() - timedelta(seconds=UNCLEAR_AFTER_SECONDS))
    settled = 0
    for run_id in list(old.order_by("created_at").values_list("id", flat=True)[:limit]):
        try:
            found = temporal.standing(run_id)
        except Unavailable as error:
            logger.info("unclear starts wait: %s", error.message)
            break
        if found == "absent":
            forget(run_id)
        else:
            confirm(run_id)
        settled += 1
    return settled

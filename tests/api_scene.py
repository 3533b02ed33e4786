"""Rows of one project as a running kernel would have left them: a run, an uncertain operation, a waiting request."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db import transaction

from approvals import services as approvals
from approvals.contracts import PolicyResult, Request
from approvals.models import Approval
from kernel_project.primitives import ids
from kernel_project.primitives.clock import now
from outbox import services as outbox
from runs.boundary import artifacts, intents, journal
from runs.loop.turns import begin_run
from runs.models import AgentVersion, Artifact, Hold, Operation, Project, Run
from tests.kernel import make_agent, make_project, says


@dataclass(frozen=True)
class Scene:
    project: Project
    version: AgentVersion
    run: Run
    uncertain: Operation
    approval: Approval
    hold: Hold

    def ids(self) -> dict[str, str]:
        """What stands in the routes' paths."""
        return {
            "run_id": str(self.run.id),
            "operation_id": str(self.uncertain.id),
            "approval_id": str(self.approval.id),
            "digest": self.run.input_digest,
            "hold_id": str(self.hold.id),
        }


def make_scene(started_by: str = "tester", **policy: Any) -> Scene:
    project = make_project()
    version = make_agent(project, [says("done")])
    run = make_run(version, started_by)
    uncertain = make_operation(run, 1, "uncertain", error_class="timeout", settled_at=now())
    waiting = make_operation(run, 2, "awaiting_approval")
    hold = Hold.objects.create(project=project.slug, scope="run", run_id=run.id, reason="a claim", placed_by="lea")
    return Scene(project, version, run, uncertain, ask(run, waiting, **policy), hold)


def make_run(version: AgentVersion, started_by: str = "tester") -> Run:
    body = artifacts.stage(b"go")
    with transaction.atomic():
        run = Run.objects.create(
            project=version.agent.project, agent_version=version, input_digest=body.digest, started_by=started_by
        )
        artifacts.claim(run.id, Artifact.Kind.INPUT, [body])
        begin_run(run)
    return run


def make_operation(run: Run, position: int, state: str, **more: Any) -> Operation:
    arguments = artifacts.stage_json({"text": f"call {position}"})
    artifacts.claim(run.id, Artifact.Kind.ARGUMENTS, [arguments])
    left = state != "awaiting_approval"
    times = {"dispatched_at": now(), "first_dispatched_at": now(), "deadline_at": now(), "attempt": 1} if left else {}
    operation = Operation.objects.create(
        id=ids.operation_id(run.id, 1, position),
        run=run,
        project_id=run.project_id,
        turn=1,
        position=position,
        kind="python",
        name="note",
        arguments_digest=arguments.digest,
        actor=run.agent_version.agent.name,
        effect="write",
        state=state,
        **times | more,
    )
    if left:
        with transaction.atomic():
            outbox.append([journal.started(operation)])
    return operation


def ask(run: Run, operation: Operation, **policy: Any) -> Approval:
    with transaction.atomic():
        return approvals.request(
            Request(
                project=run.project_id,
                run_id=run.id,
                operation_id=operation.id,
                agent=operation.actor,
                tool=operation.name,
                effect=operation.effect,
                binding=intents.binding(operation),
                arguments_hash=operation.arguments_digest,
                requested_by=run.started_by,
                policy=PolicyResult(answer="require", **policy),
            )
        )


def passed(approval: Approval) -> None:
    """The deadline of a request is over."""
    Approval.objects.filter(id=approval.id).update(deadline_at=now() - timedelta(seconds=1))

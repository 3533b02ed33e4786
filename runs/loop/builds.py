"""Builds of the worker, as Temporal tells them apart: which ones there are, and which one runs go to."""

from __future__ import annotations

from dataclasses import dataclass

from django.conf import settings
from temporalio.api.enums.v1 import WorkerDeploymentVersionStatus
from temporalio.api.workflowservice.v1 import (
    DescribeWorkerDeploymentRequest,
    SetWorkerDeploymentCurrentVersionRequest,
)
from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import WorkerDeploymentConfig

from kernel_project.primitives.errors import Conflict, NotFound, Unavailable
from runs.loop import temporal

STATUS_PREFIX = "WORKER_DEPLOYMENT_VERSION_STATUS_"


@dataclass(frozen=True)
class Build:
    """A build that has workers, or had: `current` gets all work, `draining` is still waited for by nobody new."""

    name: str
    status: str


def deployment() -> str:
    """What Temporal knows our workers as, all builds together: the queue's name, which may hold no dot there."""
    return settings.TEMPORAL_TASK_QUEUE.replace(".", "-")


def config() -> WorkerDeploymentConfig | None:
    """How a worker names its build. With versioning, a run goes on with whatever build is current.

    Runs wait for weeks, so none is bound to the build that it began with: recorded histories show that it may change.
    """
    if not settings.KERNEL_BUILD_ID:
        return None
    return WorkerDeploymentConfig(
        version=WorkerDeploymentVersion(deployment(), settings.KERNEL_BUILD_ID),
        use_worker_versioning=settings.KERNEL_WORKER_VERSIONING,
        default_versioning_behavior=VersioningBehavior.AUTO_UPGRADE
        if settings.KERNEL_WORKER_VERSIONING
        else VersioningBehavior.UNSPECIFIED,
    )


def known() -> list[Build]:
    """All builds, the newest first. Raises Unavailable when Temporal cannot be asked."""
    return temporal.call(_known())


async def _known() -> list[Build]:
    client = await temporal.client()
    asked = DescribeWorkerDeploymentRequest(namespace=settings.TEMPORAL_NAMESPACE, deployment_name=deployment())
    try:
        found = await client.workflow_service.describe_worker_deployment(asked, timeout=temporal.RPC_TIMEOUT)
    except RPCError as error:
        if error.status == RPCStatusCode.NOT_FOUND:
            return []
        raise temporal.Unclear("the workflow engine does not answer") from error
    versions = sorted(found.worker_deployment_info.version_summaries, key=lambda one: -one.create_time.ToNanoseconds())
    return [Build(one.deployment_version.build_id, _status(one.status)) for one in versions]


def _status(number: WorkerDeploymentVersionStatus.ValueType) -> str:
    return WorkerDeploymentVersionStatus.Name(number).removeprefix(STATUS_PREFIX).lower()


def make_current(build: str) -> None:
    """Let all runs go on with this build from now on; the empty text: with workers that are not versioned.

    Raises NotFound for a build that no worker has told of, Conflict for one that Temporal refuses because it lacks
    workers, Unavailable when Temporal cannot be asked. A repeat changes nothing.
    """
    temporal.call(_make_current(build))


async def _make_current(build: str) -> None:
    client = await temporal.client()
    asked = SetWorkerDeploymentCurrentVersionRequest(
        namespace=settings.TEMPORAL_NAMESPACE, deployment_name=deployment(), build_id=build, identity="agent-kernel"
    )
    try:
        await client.workflow_service.set_worker_deployment_current_version(asked, timeout=temporal.RPC_TIMEOUT)
    except RPCError as error:
        raise _refusal(error, build) from error


def _refusal(error: RPCError, build: str) -> NotFound | Conflict | Unavailable:
    if error.status == RPCStatusCode.NOT_FOUND:
        return NotFound(f"no worker of the build {build!r} has told Temporal of itself: start one first")
    if error.status == RPCStatusCode.FAILED_PRECONDITION:
        return Conflict(f"Temporal does not take {build!r}: {error.message}")
    return temporal.Unclear("the workflow engine does not answer")

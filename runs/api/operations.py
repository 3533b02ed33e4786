"""Doors to operations: list, read, reconcile, probe, compensate."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.http import HttpRequest
from ninja import Query, Router, Status

from kernel_project.web import pages
from kernel_project.web.callers import Needs, caller_of
from kernel_project.web.pages import Page
from runs import selectors
from runs.api import answers
from runs.api.contracts import Compensate, CompensationItem, OperationDetail, OperationItem, OperationQuery, Reconcile
from runs.api.runs import actor_of
from runs.boundary import compensation
from runs.boundary import reconcile as reconciling
from runs.loop import compensations

router = Router(tags=["operations"])


@router.get("/operations", auth=Needs("operations:read"), response=Page[OperationItem])
def list_operations(request: HttpRequest, asked: Query[OperationQuery]) -> Page[OperationItem]:
    """Operations of all runs, newest run first; `?state=uncertain` is the queue of unclear outcomes."""
    below = pages.decode(asked.cursor, _place) if asked.cursor else None
    found = selectors.operations(caller_of(request).project, state=asked.state, kind=asked.kind, below=below)
    return pages.page(found, asked.limit, answers.operation_item, _position)


@router.get("/operations/{operation_id}", auth=Needs("operations:read"), response=OperationDetail)
def get_operation(request: HttpRequest, operation_id: UUID) -> OperationDetail:
    """One operation; with its arguments and result for callers that have the scope `artifacts:read`."""
    caller = caller_of(request)
    operation = selectors.operation(caller.project, operation_id)
    shown = "artifacts:read" in caller.scopes
    return answers.operation_detail(operation, selectors.bodies(operation) if shown else {})


@router.post("/operations/{operation_id}/reconcile", auth=Needs("operations:reconcile"), response=OperationItem)
def reconcile(request: HttpRequest, operation_id: UUID, asked: Reconcile) -> OperationItem:
    """Say what became of an uncertain operation. The run goes on with it."""
    caller = caller_of(request)
    operation = reconciling.resolve(
        operation_id,
        project=caller.project,
        verdict=asked.verdict,
        by=actor_of(caller),
        note=asked.note,
        result=asked.result,
        evidence=asked.evidence.encode(),
    )
    return answers.operation_item(operation)


@router.post("/operations/{operation_id}/probe", auth=Needs("operations:reconcile"), response={202: OperationItem})
def probe(request: HttpRequest, operation_id: UUID) -> Status[OperationItem]:
    """Ask the other side, within seconds, what became of an uncertain operation; read it again to see the answer."""
    operation = reconciling.probe_soon(operation_id, caller_of(request).project)
    return Status(202, answers.operation_item(operation))


@router.post(
    "/operations/{operation_id}/compensate", auth=Needs("operations:compensate"), response={202: CompensationItem}
)
def compensate(request: HttpRequest, operation_id: UUID, asked: Compensate) -> Status[CompensationItem]:
    """Undo its effect with the call that its tool declares: an operation of its own, in a run of its own."""
    caller = caller_of(request)
    run = compensations.compensate(operation_id, project=caller.project, by=actor_of(caller), note=asked.note)
    return Status(202, answers.compensation_item(run, compensation.call_of(run)))


def _position(row: Any) -> list[str | int]:
    return [str(row.run_id), row.turn, row.position]


def _place(position: list[Any]) -> tuple[UUID, int, int]:
    run_id, turn, place = position
    return UUID(run_id), pages.small(turn), pages.small(place)

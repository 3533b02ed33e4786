"""Scenes for the console's tests: runs whose rows and events the services themselves wrote, without a worker."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.contrib.auth.models import Group, Permission, User
from django.db.models import Func
from django.test import Client

from approvals import policy
from approvals.contracts import Rule
from approvals.models import Approval
from kernel_project.primitives.ids import operation_id
from outbox.models import Event
from runs.boundary import artifacts, operations
from runs.boundary.contracts import Dispatch, EffectResult
from runs.boundary.models.contracts import ModelAnswer, ToolCall
from runs.boundary.operations import Unclear
from runs.loop import endings, turns
from runs.loop.contracts import FinishInput, ThinkInput
from runs.loop.starts import confirm
from runs.models import AgentVersion, Artifact, Operation, Project, Run
from tests.kernel import make_agent, make_project, make_tool, says

PASSWORD = "a long password for tests"
ANY_SCHEMA = {"type": "object"}


def person(
    name: str, *permissions: str, superuser: bool = False, groups: Sequence[str] = (), password: str | None = None
) -> User:
    """A member of staff with exactly these permissions, as `app.codename`; can log in only with a password."""
    made = User.objects.create_user(name, password=password, is_staff=True, is_superuser=superuser)
    for wanted in permissions:
        app, _, codename = wanted.partition(".")
        made.user_permissions.add(Permission.objects.get(content_type__app_label=app, codename=codename))
    made.groups.set([Group.objects.get_or_create(name=group)[0] for group in groups])
    return made


def viewer(name: str = "vera", *more: str, password: str | None = None) -> User:
    """Somebody who may look at everything, and do what else is named."""
    made = person(name, *more, password=password)
    made.user_permissions.add(*Permission.objects.filter(codename__startswith="view_"))
    return made


def logged_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def nothing(dispatch: Dispatch, **_: Any) -> str:
    raise AssertionError("a scene performs nothing")


def make_scene_tools(project: Project, **names: dict[str, Any]) -> None:
    for name, declared in names.items():
        make_tool(project, name.replace("__", "/"), nothing, **({"input_schema": ANY_SCHEMA} | declared))


def begin(version: AgentVersion, text: str = "look after the invoices", by: str = "billing-service") -> Run:
    """A running run, as if Temporal had taken it."""
    body = artifacts.stage(text.encode())
    run = Run.objects.create(
        project=version.agent.project, agent_version=version, input_digest=body.digest, started_by=by
    )
    artifacts.claim(run.id, Artifact.Kind.INPUT, [body])
    confirm(run.id)
    run.refresh_from_db()
    return run


def turn(run: Run, number: int, text: str = "", calls: Sequence[tuple[str, dict[str, Any]]] = ()) -> list[Operation]:
    """One turn of the model, which says something or wants something; returns the operations of its calls."""
    asked = ThinkInput(run_id=run.id, turn=number, attempt=1, tools=True, calls_allowed=20)
    question = turns.open_turn(asked, lambda *_: None)
    assert isinstance(question, turns.Question), question
    wanted = tuple(
        ToolCall(id=f"c{n}", name=name, arguments=json.dumps(given)) for n, (name, given) in enumerate(calls)
    )
    reason = "tool_calls" if wanted else "stop"
    turns.close_turn(asked, question, ModelAnswer(text=text, calls=wanted, finish_reason=reason, provider="scripted"))
    return list(Operation.objects.filter(run=run, turn=number, position__gte=1).order_by("position"))


def dispatched(operation: Operation) -> Dispatch:
    given = operations.dispatch(operation.id, lambda *_: None)
    assert isinstance(given, Dispatch), given
    return given


def succeed(operation: Operation, text: str = "done") -> None:
    operations.settle_answer(dispatched(operation), EffectResult(text=text))


def fail(operation: Operation, error_class: str = "refused", message: str = "HTTP 422") -> None:
    operations.settle_failure(dispatched(operation), error_class, message)


def lose(operation: Operation, message: str = "read timed out after 30 s") -> None:
    """The call was sent and nobody knows what became of it."""
    operations.settle_uncertain(Unclear(dispatched(operation), "timeout", message))


def end(run: Run, outcome: str = "completed", code: str = "", message: str = "") -> None:
    endings.finish(FinishInput(run_id=run.id, outcome=outcome, code=code, message=message))  # type: ignore[arg-type]


def waiting_run(
    project: Project | None = None,
    by: str = "billing-service",
    tool: str = "pay",
    rule: dict[str, Any] | None = None,
    **arguments: Any,
) -> Approval:
    """A run whose one call waits for a person, by the kernel's default or by this rule."""
    project = project or make_project()
    if rule:
        policy.save(project.slug, Rule(name=f"on {tool}", answer="require", tool=tool, **rule), "test")
    if not project.tool_set.filter(name=tool).exists():
        make_scene_tools(project, **{tool: {"effect": "write"}})
    version = make_agent(project, [says("done")], [tool])
    [operation] = turn(begin(version, by=by), 1, calls=[(tool, arguments or {"amount": 12, "to": "ACME"})])
    return Approval.objects.get(operation_id=operation.id)


def uncertain_run(
    project: Project | None = None,
    tool: str = "transfer",
    error: str = "read timed out after 30 s",
    by: str = "billing-service",
    **arguments: Any,
) -> Operation:
    """A run whose one call is uncertain and has no probe."""
    project = project or make_project()
    if not project.tool_set.filter(name=tool).exists():
        make_scene_tools(project, **{tool: {"effect": "write", "idempotent_for_seconds": 60}})
    version = make_agent(project, [says("done")], [tool])
    [operation] = turn(begin(version, by=by), 1, calls=[(tool, arguments or {"amount": 7})])
    lose(operation, error)
    operation.refresh_from_db()
    return operation


def model_call(run: Run, number: int) -> Operation:
    return Operation.objects.get(id=operation_id(run.id, number, 0))


def is_late(approval: Approval) -> bool:
    return Approval.objects.filter(id=approval.id, deadline_at__lte=Func(function="clock_timestamp")).exists()


def first_event(run: Run) -> UUID:
    return Event.objects.get(run_id=run.id, sequence=1).event_id

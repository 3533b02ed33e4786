"""Doors to runs: start, list, read, cancel, follow. Each translates, calls one service, answers."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

from asgiref.sync import sync_to_async
from django.db import connection
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from ninja import Header, Query, Router, Status

from kernel_project.web import pages
from kernel_project.web.callers import Caller, Needs, caller_of
from kernel_project.web.fields import QuerySequence, Text
from kernel_project.web.pages import Page
from outbox.contracts import Actor
from runs import selectors
from runs.api import answers, follow
from runs.api.contracts import (
    CancelRun,
    EventPage,
    EventQuery,
    MessageItem,
    MessageSaid,
    OperationItem,
    RunDetail,
    RunItem,
    RunQuery,
    RunStarted,
    SayToRun,
    StartRun,
)
from runs.loop import endings, messages, resumes, starts
from runs.loop.starts import KEY_CHARS_MAX, StartRequest

router = Router(tags=["runs"])
Key = Annotated[
    Text | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=KEY_CHARS_MAX,
        description="Repeat a request with the same key and body, and it finds the same run.",
    ),
]
EVENT_STREAM = "text/event-stream"
LastEventId = Annotated[
    QuerySequence | None,
    Header(
        alias="Last-Event-ID",
        description="For a stream that goes on: the last sequence already seen. Goes before `after`.",
    ),
]
FOLLOW: dict[str, Any] = {"responses": {200: {"content": {EVENT_STREAM: {"schema": {"type": "string"}}}}}}
START_HEADERS: dict[str, Any] = {
    "responses": {
        202: {
            "headers": {
                "Location": {"schema": {"type": "string"}, "description": "Where the run can be read."},
                "Idempotency-Replayed": {
                    "schema": {"type": "string", "enum": ["true"]},
                    "description": "Only when the run was there before.",
                },
            }
        }
    }
}


@router.post("/runs", auth=Needs("runs:start"), response={202: RunStarted}, openapi_extra=START_HEADERS)
def start_run(
    request: HttpRequest, asked: StartRun, response: HttpResponse, idempotency_key: Key = None
) -> Status[RunStarted]:
    """Start a run; answered once the workflow engine has acknowledged it."""
    caller = caller_of(request)
    started = starts.start(
        StartRequest(
            project=caller.project,
            agent=asked.agent,
            input=asked.input,
            version=asked.version,
            workspace=asked.workspace,
            owner=caller.name,
            key=idempotency_key or "",
        )
    )
    response["Location"] = f"{request.path}/{started.run.id}"
    if started.replayed:
        response["Idempotency-Replayed"] = "true"
    return Status(202, answers.started(started.run))


@router.get("/runs", auth=Needs("runs:read"), response=Page[RunItem])
def list_runs(request: HttpRequest, asked: Query[RunQuery]) -> Page[RunItem]:
    """Runs, newest first."""
    found = selectors.runs(
        caller_of(request).project,
        state=asked.state,
        agent=asked.agent,
        started_after=asked.started_after,
        started_before=asked.started_before,
        below=pages.decode(asked.cursor, lambda position: UUID(position[0])) if asked.cursor else None,
    )
    return pages.page(found, asked.limit, answers.run_item, lambda run: [str(run.pk)])


@router.get("/runs/{run_id}", auth=Needs("runs:read"), response=RunDetail)
def get_run(request: HttpRequest, run_id: UUID) -> RunDetail:
    """One run, with the text that it has come to."""
    run = selectors.run(caller_of(request).project, run_id)
    return answers.run_detail(run, *selectors.last_answer(run))


@router.post("/runs/{run_id}/cancel", auth=Needs("runs:cancel"), response={202: RunItem})
def cancel_run(request: HttpRequest, run_id: UUID, asked: CancelRun = CancelRun()) -> Status[RunItem]:  # noqa: B008
    """Ask a run to stop. What is in flight is brought to its end first; an effect that happened is not undone."""
    caller = caller_of(request)
    endings.request_cancel(run_id, caller.project, actor_of(caller), asked.reason)
    return Status(202, answers.run_item(selectors.run(caller.project, run_id)))


@router.post("/runs/{run_id}/resume", auth=Needs("runs:resume"), response={202: RunItem})
def resume_run(request: HttpRequest, run_id: UUID) -> Status[RunItem]:
    """Let a failed run go on with the same operations; nothing that succeeded or is unclear is done again."""
    caller = caller_of(request)
    resumes.resume(run_id, caller.project, actor_of(caller))
    return Status(202, answers.run_item(selectors.run(caller.project, run_id)))


@router.post("/runs/{run_id}/messages", auth=Needs("runs:message"), response={202: MessageSaid})
def say_to_run(
    request: HttpRequest, run_id: UUID, asked: SayToRun, response: HttpResponse, idempotency_key: Key = None
) -> Status[MessageSaid]:
    """Leave a message for a running run: the model reads it in its next turn, once and in order."""
    caller = caller_of(request)
    said = messages.say(run_id, caller.project, asked.text, actor_of(caller), idempotency_key or "")
    if said.replayed:
        response["Idempotency-Replayed"] = "true"
    return Status(202, answers.message_said(said.message))


@router.get("/runs/{run_id}/messages", auth=Needs("runs:read"), response=Page[MessageItem])
def list_messages_of_run(request: HttpRequest, run_id: UUID, asked: Query[pages.PageQuery]) -> Page[MessageItem]:
    """What was said to a run, in order; the texts are artifacts."""
    run = selectors.run(caller_of(request).project, run_id)
    after = pages.decode(asked.cursor, lambda position: pages.small(position[0])) if asked.cursor else 0
    found = selectors.messages_of(run.id, after)
    return pages.page(found, asked.limit, answers.message_item, lambda row: [row.number])


@router.get("/runs/{run_id}/events", auth=Needs("runs:read"), response=EventPage, openapi_extra=FOLLOW)
async def list_events(
    request: HttpRequest, run_id: UUID, asked: Query[EventQuery], last_event_id: LastEventId = None
) -> EventPage | StreamingHttpResponse:
    """What has happened in a run, in order, and how much of it the event store has.

    With `Accept: text/event-stream` the events come as they are written, until the run has ended.
    """
    project = caller_of(request).project
    if asked.tokens:
        caller_of(request).check("artifacts:read")
    if EVENT_STREAM not in request.headers.get("Accept", ""):
        return await sync_to_async(_page)(project, run_id, asked)
    follow.followers().check_room()
    await sync_to_async(_page_head)(project, run_id)
    follow.let_thread_go()
    after = asked.after if last_event_id is None else last_event_id
    response = StreamingHttpResponse(
        follow.frames(run_id, after, listens=bool(asked.tokens)), content_type=EVENT_STREAM
    )
    response["X-Accel-Buffering"] = "no"  # or nginx keeps events back
    return response


def _page(project: str, run_id: UUID, asked: EventQuery) -> EventPage:
    run = selectors.run(project, run_id)
    return answers.event_page(selectors.events(run.id, asked.after, asked.limit), asked.after)


def _page_head(project: str, run_id: UUID) -> None:
    """Raise NotFound for a run that this caller does not have; the connection goes back before the stream begins."""
    selectors.run(project, run_id)
    connection.close()


@router.get("/runs/{run_id}/operations", auth=Needs("operations:read"), response=Page[OperationItem])
def list_operations_of_run(request: HttpRequest, run_id: UUID, asked: Query[pages.PageQuery]) -> Page[OperationItem]:
    """The model and tool calls of a run, in order."""
    run = selectors.run(caller_of(request).project, run_id)
    after = pages.decode(asked.cursor, _place) if asked.cursor else None
    found = selectors.operations_of(run.id, after)
    return pages.page(found, asked.limit, answers.operation_item, lambda row: [row.turn, row.position])


@router.get("/runs/{run_id}/children", auth=Needs("runs:read"), response=Page[RunItem])
def list_children_of_run(request: HttpRequest, run_id: UUID, asked: Query[pages.PageQuery]) -> Page[RunItem]:
    """The runs that other agents do for a run, in the order of their starts."""
    run = selectors.run(caller_of(request).project, run_id)
    after = pages.decode(asked.cursor, lambda position: UUID(position[0])) if asked.cursor else None
    return pages.page(selectors.children_of(run.id, after), asked.limit, answers.run_item, lambda row: [str(row.pk)])


def _place(position: list[Any]) -> tuple[int, int]:
    turn, place = position
    return pages.small(turn), pages.small(place)


def actor_of(caller: Caller) -> Actor:
    """Who is written into events: a person, or a program by its key."""
    return Actor(id=caller.name, type="human" if caller.person else "service")

"""I5: what the event store has is asked of itself; an acknowledgement never counts as having been seen."""

from __future__ import annotations

import json
from collections.abc import Callable

import httpx2
import pytest
from django.db import transaction

from kernel_project.primitives.clock import now
from kernel_project.primitives.ids import new_id
from outbox import seen, selectors, services
from outbox.api import project_lag
from outbox.contracts import NewEvent
from outbox.models import ParkedEvent, Stream

pytestmark = pytest.mark.django_db(transaction=True)


def stream(events: int, published: int, project: str = "demo") -> Stream:
    run = new_id()
    with transaction.atomic():
        services.append(
            [NewEvent(run_id=run, project=project, type="t", subject=str(n), data={}) for n in range(events)]
        )
    Stream.objects.filter(run_id=run).update(published=published, ready_at=None if published == events else now())
    return Stream.objects.get(run_id=run)


def answering(answer: Callable[[httpx2.Request], httpx2.Response]) -> httpx2.Client:
    return httpx2.Client(transport=httpx2.MockTransport(answer))


def store_with(contiguous: int) -> httpx2.Client:
    def answer(request: httpx2.Request) -> httpx2.Response:
        runs = request.url.params.get_list("run")
        found = [
            {"source_id": "s", "run": run, "contiguous": contiguous, "highest": contiguous, "count": contiguous}
            for run in runs
        ]
        return httpx2.Response(200, content=json.dumps({"runs": found}).encode())

    return answering(answer)


def test_what_the_store_says_stands_beside_what_it_acknowledged():
    row = stream(events=3, published=3)
    assert row.seen is None
    assert seen.look(store_with(2)) == 1
    row.refresh_from_db()
    assert (row.published, row.seen) == (3, 2)


def test_a_run_that_was_seen_whole_is_not_asked_about_again():
    stream(events=3, published=3)
    seen.look(store_with(3))
    assert seen.look(store_with(3)) == 0


def test_a_run_of_which_nothing_was_acknowledged_is_not_asked_about():
    stream(events=3, published=0)
    assert seen.look(store_with(3)) == 0


@pytest.mark.parametrize("answer", [httpx2.Response(404), httpx2.Response(200, content=b"no"), httpx2.Response(500)])
def test_a_store_that_does_not_know_the_question_leaves_the_run_as_not_asked(answer):
    row = stream(events=1, published=1)
    assert seen.look(answering(lambda _request: answer)) == 0
    row.refresh_from_db()
    assert row.seen is None


def refuse(row: Stream, *sequences: int, **fields: object) -> None:
    for sequence in sequences:
        ParkedEvent.objects.create(
            event_id=new_id(), run_id=row.run_id, sequence=sequence, reason="invalid", last_error="no", **fields
        )


def telling(contiguous: int, highest: int, count: int) -> httpx2.Client:
    def answer(request: httpx2.Request) -> httpx2.Response:
        numbers = {"contiguous": contiguous, "highest": highest, "count": count}
        found = [{"source_id": "s", "run": run, **numbers} for run in request.url.params.get_list("run")]
        return httpx2.Response(200, content=json.dumps({"runs": found}).encode())

    return answering(answer)


@pytest.mark.parametrize("fields", [{}, {"state": "given_up", "resolved_at": now()}])
def test_a_refused_event_is_no_gap_and_is_not_counted_as_acknowledged(fields):
    row = stream(events=5, published=5)
    refuse(row, 2, 5, **fields)
    seen.look(telling(contiguous=1, highest=4, count=3))
    recent, lag = selectors.recent_delivery(), project_lag("demo")
    assert (recent.streams_with_gap, recent.acknowledged, recent.acknowledged_of_asked, recent.seen) == (0, 3, 3, 3)
    assert (lag.runs_with_gap, lag.acknowledged, lag.seen) == (0, 3, 3)


def test_behind_a_refused_event_a_missing_one_is_still_a_gap():
    row = stream(events=5, published=5)
    refuse(row, 2)
    seen.look(telling(contiguous=1, highest=5, count=3))
    assert project_lag("demo").runs_with_gap == 1


def test_a_project_that_may_not_be_read_hides_no_other():
    readable, hidden = stream(2, 2, "readable"), stream(2, 2, "hidden")  # the newest is asked about first
    whole = telling(2, 2, 2)

    def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(403) if request.url.params["project"] == "hidden" else whole.send(request)

    for _ in range(2):
        seen.look(answering(answer))
    hidden.refresh_from_db()
    readable.refresh_from_db()
    assert (hidden.seen, readable.seen) == (None, 2)


def test_runs_that_are_never_answered_for_keep_no_other_from_its_turn(monkeypatch):
    monkeypatch.setattr(seen, "STREAMS_MAX", 4)
    older = stream(2, 2, "readable")
    for _ in range(4):
        stream(2, 2, "hidden")
    whole = telling(2, 2, 2)

    def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(403) if request.url.params["project"] == "hidden" else whole.send(request)

    for _ in range(3):
        seen.look(answering(answer))
    older.refresh_from_db()
    assert older.seen == 2

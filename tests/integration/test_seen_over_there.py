"""I5: what the event store has is asked of itself; an acknowledgement never counts as having been seen."""

from __future__ import annotations

import json
from collections.abc import Callable

import httpx2
import pytest
from django.db import transaction

from kernel_project.primitives.clock import now
from kernel_project.primitives.ids import new_id
from outbox import seen, services
from outbox.contracts import NewEvent
from outbox.models import Stream

pytestmark = pytest.mark.django_db(transaction=True)


def stream(events: int, published: int) -> Stream:
    run = new_id()
    with transaction.atomic():
        services.append(
            [NewEvent(run_id=run, project="demo", type="t", subject=str(n), data={}) for n in range(events)]
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

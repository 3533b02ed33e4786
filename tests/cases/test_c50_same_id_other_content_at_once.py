"""C50. 50 senders use one event id at the same moment, half of them with another payload."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from kernel_project.devstack.postgres import Postgres
from tests.temporality_server import EVENTS, Answer, Event, EventStore, event, running

SENDERS = 50


@pytest.fixture(scope="module")
def store(postgres: Postgres) -> Iterator[EventStore]:
    with running(postgres) as store:
        yield store


@pytest.fixture(scope="module")
def token(store: EventStore) -> str:
    return store.token("p")


def all_at_once(store: EventStore, token: str, events: list[Event]) -> list[Answer]:
    gate = Barrier(len(events))

    def send(one: Event) -> Answer:
        gate.wait()
        return store.post(token, one)

    with ThreadPoolExecutor(len(events)) as pool:
        return list(pool.map(send, events))


def test_one_row_right_answers_and_never_a_500(store: EventStore, token: str) -> None:
    versions = [event("p", event_id="m-1", data={"payload": "PQ"[n % 2]}) for n in range(SENDERS)]
    answers = all_at_once(store, token, versions)
    assert {answer.status for answer in answers} <= {200, 207}
    kept = store.get(EVENTS, token, project="p", event_id="m-1").json["events"]
    assert len(kept) == 1
    winner = kept[0]["data"]["payload"]
    codes = Counter(
        (one["data"]["payload"] == winner, answer.codes[0]) for one, answer in zip(versions, answers, strict=True)
    )
    assert codes == {(True, "accepted"): 1, (True, "repeated"): SENDERS // 2 - 1, (False, "conflict"): SENDERS // 2}
    conflicts = store.get("/v1/observations/conflicts", token, project="p").json["conflicts"]
    assert [conflict["times_seen"] for conflict in conflicts] == [SENDERS // 2]


def test_the_first_payload_later_in_another_order_of_members_is_repeated(store: EventStore, token: str) -> None:
    one = event("p", event_id="m-2", data={"a": 1, "b": 2})
    store.post(token, one)
    turned = dict(reversed(one.items())) | {"data": {"b": 2, "a": 1}}
    body = json.dumps({"events": [turned]}, indent=2).encode()
    assert store.request("POST", EVENTS, token, body).codes == ["repeated"]


def test_a_missing_id_is_refused_not_invented(store: EventStore, token: str) -> None:
    one = event("p")
    del one["event_id"]
    answer = store.post(token, one)
    assert (answer.status, answer.json["error"]) == (422, "events[0]: event_id: is required")

"""C53. Event ids that are very long, hold odd characters, or differ in one letter's case."""

from __future__ import annotations

import random
import string
from collections.abc import Iterator

import pytest

from kernel_project.devstack.postgres import Postgres
from tests.temporality_server import EVENTS, EventStore, event, running


@pytest.fixture(scope="module")
def store(postgres: Postgres) -> Iterator[EventStore]:
    with running(postgres) as store:
        yield store


@pytest.fixture(scope="module")
def token(store: EventStore) -> str:
    return store.token("p")


def noise(size: int) -> str:
    return "".join(random.choices(string.ascii_letters + string.digits, k=size))


@pytest.mark.parametrize("text", [noise(255), noise(256), "é" * 256, "\U0001f511" * 256])
def test_up_to_256_characters_are_kept_whole_in_every_indexed_place(store: EventStore, token: str, text: str) -> None:
    one = event(
        "p", text, text[:128], text, context={"run": text, "task": text, "actor": {"id": text}}, data={"sequence": 1}
    )
    assert store.post(token, one).codes == ["accepted"]
    assert store.get(EVENTS, token, project="p", event_id=text, run=text).json["events"][0]["event_id"] == text


@pytest.mark.parametrize("size", [257, 2_705, 6_000, 100_000])
@pytest.mark.parametrize("make", [noise, lambda size: "a" * size])
def test_longer_ones_are_refused_with_a_sentence(store: EventStore, token: str, size: int, make: object) -> None:
    answer = store.post(token, event("p", event_id=make(size)))  # type: ignore[operator]
    assert answer.status == 422
    assert answer.json["error"].startswith("events[0]: event_id: ")
    assert "256" in answer.json["error"]


def test_a_nul_is_refused(store: EventStore, token: str) -> None:
    assert store.post(token, event("p", event_id="a\0b")).status == 422


def test_twins_stay_different_and_nothing_is_trimmed(store: EventStore, token: str) -> None:
    names = ["twin", "Twin", " twin", "twin ", "twin\t", "é", "e\u0301"]
    answer = store.post(token, *[event("p", event_id=name) for name in names])
    assert answer.codes == ["accepted"] * len(names)
    for name in names:
        found = store.get(EVENTS, token, project="p", event_id=name).json["events"]
        assert [one["event_id"] for one in found] == [name]

"""C46. A parked event is sent again with the same bytes when a person asks, or given up by a named person, and told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from uuid import UUID

import pytest
from django.contrib.admin.models import LogEntry
from django.core.management import CommandError, call_command
from django.db.models.functions import Now
from django.urls import reverse

from kernel_project.primitives.errors import Conflict, Invalid, NotFound
from kernel_project.primitives.ids import new_id
from outbox import parked, selectors
from outbox.contracts import Actor
from outbox.models import Destination, Event, ParkedEvent, Stream
from outbox.publisher import Publisher
from tests.console import logged_in, person, viewer
from tests.fakes.event_store import CONFLICT, STORAGE, FakeEventStore, failing, fake_event_store
from tests.outbox_scene import numbered, pending, publishing, write

pytestmark = pytest.mark.django_db(transaction=True)
ANN = Actor(id="ann", type="human")


@pytest.fixture
def store() -> Iterator[FakeEventStore]:
    with fake_event_store() as fake:
        yield fake


@pytest.fixture
def publisher(store: FakeEventStore) -> Iterator[Publisher]:
    with publishing(store) as made:
        yield made


@pytest.fixture
def event(store: FakeEventStore, publisher: Publisher) -> Event:
    """The second of three events of a run: refused, and parked."""
    run = new_id()
    write(run, *numbered(3))
    refuse(store, run)
    publisher.drain()
    return Event.objects.get(run_id=run, sequence=2)


def refuse(store: FakeEventStore, run: UUID) -> None:
    refusal = {"status": "rejected", "error": "data.n is no number"}
    store.judge = lambda e: refusal if (e["context"]["run"], e["data"]["sequence"]) == (str(run), 2) else None


def replay_now(publisher: Publisher) -> None:
    publisher._replayed_at = 0.0
    publisher._replay()


def state(event: Event) -> str:
    return ParkedEvent.objects.get(event_id=event.event_id).state


def told(event: Event) -> dict[str, object]:
    last = Event.objects.filter(run_id=event.run_id).order_by("-sequence").first()
    assert last is not None
    return json.loads(last.envelope)


def test_a_replay_sends_the_same_bytes_and_the_event_is_delivered(event, store, publisher):
    parked.replay(event.event_id, by=ANN, note="their schema was fixed")
    assert (state(event), selectors.lag().parked) == ("queued", 1)
    store.judge = lambda _event: None
    replay_now(publisher)
    assert store.bodies[-1] == b'{"events":[' + event.envelope.encode() + b"]}"
    assert (state(event), selectors.lag().parked) == ("replayed", 0)
    assert selectors.stream_lag(event.run_id).acknowledged == 3


def test_the_wish_for_a_replay_is_an_event_with_its_person(event):
    parked.replay(event.event_id, by=ANN, note="their schema was fixed")
    envelope = told(event)
    assert (envelope["type"], envelope["context"]["actor"]) == (
        "event.replay_requested",
        {"id": "ann", "type": "human"},
    )
    assert envelope["data"]["refused_event_id"] == str(event.event_id)


def test_what_is_refused_again_is_parked_again_and_can_be_replayed_again(event, store, publisher):
    for _ in range(2):
        parked.replay(event.event_id, by=ANN, note="try")
        replay_now(publisher)
        assert state(event) == "parked"
    assert ParkedEvent.objects.get(event_id=event.event_id).attempts == 3
    assert Event.objects.filter(type="event.replay_requested").count() == 2


def test_a_replay_waits_while_the_event_store_is_down(event, store, publisher):
    parked.replay(event.event_id, by=ANN, note="try")
    store.answer = failing(503)
    replay_now(publisher)
    assert (state(event), Destination.objects.get().failures) == ("queued", 1)
    store.answer, store.judge = store.take, lambda _event: None
    requests = store.requests
    replay_now(publisher)  # the circuit is open
    assert store.requests in (requests, requests + 1)
    Destination.objects.update(open_until=None)
    ParkedEvent.objects.update(next_attempt_at=Now())
    replay_now(publisher)
    assert state(event) == "replayed"


def test_the_running_publisher_finds_what_is_to_be_replayed(event, store, publisher):
    parked.replay(event.event_id, by=ANN, note="try")
    store.judge = lambda _event: None
    publisher.run(1.5)
    assert (state(event), pending()) == ("replayed", 0)


def test_a_replay_that_is_held_lets_the_others_go_first(event, store, publisher, monkeypatch):
    """The event store answers a storage error for the oldest ones again and again."""
    monkeypatch.setattr(parked, "REPLAYS_PER_LOOK", 2)
    held = new_id()
    write(held, *numbered(3))
    store.judge = lambda _event: {"status": "rejected", "error": "no"}
    publisher.drain()
    for row in ParkedEvent.objects.filter(run_id=held).order_by("sequence"):
        parked.replay(row.event_id, by=ANN, note="try")
    parked.replay(event.event_id, by=ANN, note="try")
    storage = {"status": "rejected", "error": STORAGE}
    store.judge = lambda e: storage if e["context"]["run"] == str(held) else None
    for _ in range(2):
        replay_now(publisher)
    assert state(event) == "replayed"
    requests = store.requests
    replay_now(publisher)
    assert store.requests == requests
    assert set(ParkedEvent.objects.filter(run_id=held).values_list("state", "held_count")) == {("queued", 1)}


def test_what_waits_for_its_replay_can_be_given_up(event, store, publisher):
    parked.replay(event.event_id, by=ANN, note="try")
    parked.give_up(event.event_id, by=ANN, note="it is never taken")
    store.judge = lambda _event: None
    replay_now(publisher)
    assert (state(event), told(event)["type"]) == ("given_up", "event.given_up")


def test_giving_up_is_signed_and_is_itself_an_event(event, publisher):
    row = parked.give_up(event.event_id, by=ANN, note="a test event")
    assert (row.state, row.resolved_by, row.note, row.resolved_at is not None) == (
        "given_up", "ann", "a test event", True,
    )  # fmt: skip
    envelope = told(event)
    assert (envelope["type"], envelope["data"]["status"]) == ("event.given_up", "given_up")
    assert "parent_event_id" not in envelope["context"]
    assert selectors.lag().parked == 0
    publisher.drain()
    assert selectors.stream_lag(event.run_id).acknowledged == 3  # of four


def test_only_what_is_parked_now_can_be_decided(event):
    parked.give_up(event.event_id, by=ANN, note="no")
    for decide in (parked.give_up, parked.replay):
        with pytest.raises(Conflict, match="given up"):
            decide(event.event_id, by=ANN, note="again")
    with pytest.raises(NotFound):
        parked.replay(new_id(), by=ANN, note="what")


@pytest.mark.parametrize(("by", "note"), [("ann", " "), ("ann", "x" * 2_001), ("ann", "a\x00b"), (" ", "why")])
def test_nobody_decides_without_a_name_and_a_reason(event, by, note):
    with pytest.raises(Invalid):
        parked.give_up(event.event_id, by=Actor(id=by, type="human"), note=note)
    assert state(event) == "parked"


def test_a_crash_after_a_replay_was_taken_sends_it_once_more_and_changes_nothing(event, store, publisher, monkeypatch):
    """T20 for replays: taken over there, not yet written down here."""
    parked.replay(event.event_id, by=ANN, note="try")
    store.judge = lambda _event: None
    with monkeypatch.context() as patch:
        patch.setattr(parked, "_settle_replay", lambda *_: (_ for _ in ()).throw(SystemExit))
        with pytest.raises(SystemExit):
            replay_now(publisher)
    replay_now(publisher)
    assert (state(event), store.changed) == ("replayed", [])


def test_the_command_lists_replays_and_gives_up(event, capsys):
    call_command("outbox_parked", "list", "--json")
    [listed] = json.loads(capsys.readouterr().out)
    assert (listed["event_id"], listed["error"]) == (str(event.event_id), "data.n is no number")
    call_command("outbox_parked", "replay", "--all", "--reason", "invalid", "--note", "fixed", "--by", "bob")
    assert state(event) == "queued"
    with pytest.raises(CommandError, match="waiting for its replay"):
        call_command("outbox_parked", "replay", str(event.event_id), "--note", "no")
    with pytest.raises(CommandError, match="name one event"):
        call_command("outbox_parked", "replay", "--note", "none named")


def test_the_command_shows_hostile_texts_harmlessly(event, capsys):
    ParkedEvent.objects.update(last_error="\x1b[2Jgone")
    call_command("outbox_parked", "list")
    assert "\x1b" not in capsys.readouterr().out


def act(client, event: Event, action: str, **more: str):
    data = {"action": action, "_selected_action": str(event.event_id), **more}
    return client.post(reverse("admin:outbox_parkedevent_changelist"), data)


def test_in_the_console_an_operator_gives_a_note_and_it_is_audited(event):
    client = logged_in(viewer("olga", "outbox.replay_parkedevent", "outbox.give_up_parkedevent"))
    asked = act(client, event, "replay")
    assert (asked.status_code, b"same bytes" in asked.content, state(event)) == (200, True, "parked")
    act(client, event, "replay", note="their schema was fixed")
    row = ParkedEvent.objects.get(event_id=event.event_id)
    assert (row.state, row.resolved_by, row.note) == ("queued", "olga", "their schema was fixed")
    assert LogEntry.objects.filter(user__username="olga", object_id=str(event.event_id)).exists()


def test_whoever_may_only_look_decides_nothing(event):
    act(logged_in(viewer("vic")), event, "give_up", note="no")
    act(logged_in(person("nobody")), event, "give_up", note="no")
    assert state(event) == "parked"


def test_roles_that_operate_may_decide():
    from django.contrib.auth.models import Group

    for name, may in (("operator", True), ("admin", True), ("viewer", False), ("approver", False)):
        held = Group.objects.filter(name=name, permissions__codename="give_up_parkedevent").exists()
        assert held == may or not Group.objects.filter(name=name).exists()


def test_parking_the_same_event_twice_is_one_row(event, store, publisher):
    """The publisher died after the store refused it and before its cursor moved: it is refused and parked again."""
    Stream.objects.filter(run_id=event.run_id).update(published=1, ready_at=event.recorded_at)
    refuse(store, event.run_id)
    publisher.drain()
    assert ParkedEvent.objects.count() == 1


def test_t46_another_content_under_the_same_id_is_told_as_a_conflict_and_parked(store, publisher):
    run = new_id()
    write(run, "a")
    kept = Event.objects.get()
    store.texts[str(kept.event_id)] = "something else"
    publisher.drain()
    assert ParkedEvent.objects.get().reason == "conflict"
    assert ParkedEvent.objects.get().last_error == CONFLICT

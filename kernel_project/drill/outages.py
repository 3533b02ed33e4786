"""Rows about processes and servers that go away: F4 worker, F5 Temporal, F6 and F7 PostgreSQL, F9 event store; and F10,
what the event store makes of events that come twice.
"""

from __future__ import annotations

from collections.abc import Iterator

from kernel_project.drill.scene import END_SECONDS_MAX, Scene, pause

Seen = Iterator[tuple[str, bool]]

OUTAGE_SECONDS = 6.0  # longer than the model thinks, so that the call would have been made meanwhile


def f4(scene: Scene) -> Seen:
    run = scene.start("f4")
    scene.wait_for_booking("began-f4")
    before = {event["event_id"] for event in scene.events(run)}
    scene.stack.kill("worker")
    scene.fresh_worker()
    ended, events = scene.end(run), scene.events(run)
    yield f"worker killed in a read: the run {ended['state']}", ended["state"] == "completed"
    yield f"the read was begun {scene.booked('began-f4')} times", scene.booked("began-f4") == 2
    sequences = [event["sequence"] for event in events]
    yield f"{len(sequences)} events without a gap", sequences == list(range(1, len(sequences) + 1))
    ids = [event["event_id"] for event in events]
    yield "those from before the crash kept their ids", before <= set(ids) and len(set(ids)) == len(ids)
    scene.client.until("the outbox to be empty", scene.no_lag, END_SECONDS_MAX)
    stored = [event["event_id"] for event in scene.stored(run)]
    yield f"the event store has each of them once: {len(stored)}", sorted(stored) == sorted(ids)


def f5(scene: Scene) -> Seen:
    before = {run["id"] for run in scene.client.items("/runs")}
    with scene.without("temporal"):
        status, retry_after = scene.client.refusal("/runs", {"agent": "f5", "input": "f5"}, "f5-once")
        yield (
            f"a start without Temporal is answered {status}, try again after {retry_after} s",
            (status == 503 and retry_after.isdigit()),
        )
        after = {run["id"] for run in scene.client.items("/runs")}
        yield f"{len(after - before)} runs came of it", after == before
    scene.fresh_worker()
    again = [scene.start("f5", key="f5-once") for _ in range(2)]
    yield f"Temporal back: the same request starts {len(set(again))} run, sent twice", len(set(again)) == 1
    yield f"it {(ended := scene.end(again[0])['state'])}", ended == "completed"


def f6(scene: Scene) -> Seen:
    yield from _store_down(scene, "f6", "look")


def f7(scene: Scene) -> Seen:
    yield from _store_down(scene, "f7", "pay")


def _store_down(scene: Scene, name: str, tool: str) -> Seen:
    """PostgreSQL goes while the model thinks, so that it is away when the call would have to be written down."""
    run = scene.start(name)
    scene.client.until("the model call", lambda: "model.started" in scene.types(run), END_SECONDS_MAX)
    with scene.without("postgres"):
        pause(OUTAGE_SECONDS)
        executed = scene.booked(name) + scene.booked(f"began-{name}")
        yield f"with the store down the call was executed {executed} times", executed == 0
        ready = scene.client.is_ready()
        yield f"/readyz says {'ready' if ready else 'not ready'}", not ready
    yield f"the store back: the run {(ended := scene.end(run)['state'])}", ended == "completed"
    events = scene.events(run)
    sequences, types = [event["sequence"] for event in events], [event["type"] for event in events]
    yield f"{len(sequences)} events without a gap", sequences == list(range(1, len(sequences) + 1))
    yield f"executed {scene.booked(name)} time", scene.booked(name) == 1
    told = types.count("tool.started")
    operation = scene.operation(run, tool)
    yield f"{told} start of it was told, {operation['attempt']} was made", told == operation["attempt"] == 1


def f9(scene: Scene) -> Seen:
    with scene.without("temporality"):
        run = scene.start("f9")
        ended, lag = scene.end(run), scene.client.get("/lag")
        yield f"the event store down: the run {ended['state']}", ended["state"] == "completed"
        yield f"lag shows {lag['pending']} events", lag["pending"] >= len(scene.events(run))
        delivered = [event for event in scene.events(run) if event["delivered"]]
        yield f"{len(delivered)} events are shown as delivered", not delivered
    scene.client.until("the outbox to be empty", scene.no_lag, END_SECONDS_MAX)
    stored, told = scene.stored(run), scene.events(run)
    yield (
        f"it is back and has {len(stored)} events",
        (sorted(event["event_id"] for event in stored) == sorted(event["event_id"] for event in told)),
    )
    yield "now they are shown as delivered", all(event["delivered"] for event in told)


def f10(scene: Scene) -> Seen:
    run = scene.start("f10")
    scene.end(run)
    scene.client.until("the outbox to be empty", scene.no_lag, END_SECONDS_MAX)
    before = scene.stored(run)
    event = {name: value for name, value in before[0].items() if name != "received_at"}
    again = scene.send(event)["results"][0]
    yield f"the same event again is {again['status']}", again["status"] == "repeated"
    other = scene.send({**event, "data": {**event["data"], "changed": True}})["results"][0]
    yield f"the same key with another content is {other['status']} ({other['code']})", other["code"] == "conflict"
    yield f"{len(before)} events before, {len(scene.stored(run))} after, unchanged", scene.stored(run) == before

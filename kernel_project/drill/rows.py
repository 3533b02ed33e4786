"""The twelve rows of the failure table: what each asks, how it is broken here, and what must be observed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from kernel_project.devstack.api_client import Json, NotAsPromised
from kernel_project.drill.scene import END_SECONDS_MAX, PROJECT, Scene, pause

OUTAGE_SECONDS = 4.0  # long enough for everybody to have tried and failed
DEADLINE_SECONDS = 3


def _call(tool: str, text: str, **more: Any) -> Json:
    return {"calls": [{"tool": tool, "arguments": {"text": text, **more}}]}


DONE: Json = {"text": "done"}
AGENTS: dict[str, list[Json]] = {
    "f1": [{"error": {"code": "rate_limited", "retry_after": 0.5, "attempts": 2}, "text": "done after all"}],
    "f2": [_call("pay_and_lose", "f2"), DONE],
    "f3": [{"calls": [{"tool": "count_slowly"}]}, DONE],
    "f4": [_call("look", "f4", seconds=8), DONE],
    "f5": [DONE],
    "f6": [{**_call("look", "f6"), "delay_seconds": 3}, DONE],
    "f7": [{**_call("pay", "f7"), "delay_seconds": 3}, DONE],
    "f8": [_call("pay", "f8"), DONE],
    "f9": [_call("look", "f9"), DONE],
    "f10": [DONE],
    "f11-expired": [_call("ask_first", "f11-expired"), DONE],
    "f11-rejected": [_call("ask_first", "f11-rejected"), DONE],
    "f12": [_call("pay", "f12", seconds=4), _call("pay", "f12-never"), DONE],
}
POLICIES: list[Json] = [
    {"name": "the drill's writes", "tool": "pay*", "answer": "allow"},
    {"name": "ask first", "tool": "ask_first", "answer": "require", "deadline_seconds": DEADLINE_SECONDS},
]


@dataclass(frozen=True)
class Row:
    """One row: `act` breaks something and yields (what was looked at, whether it is as asked)."""

    name: str
    asked: str
    act: Callable[[Scene], Iterator[tuple[str, bool]]]


def f1(scene: Scene) -> Iterator[tuple[str, bool]]:
    run = scene.start("f1")
    ended, types = scene.end(run), scene.types(run)
    yield f"the run {ended['state']} after two rate limits", ended["state"] == "completed"
    yield (
        f"{types.count('model.started')} started, {types.count('model.failed')} failed",
        (types.count("model.started") == 3 and types.count("model.failed") == 2),
    )


def f2(scene: Scene) -> Iterator[tuple[str, bool]]:
    run = scene.start("f2")
    operation = scene.until_state(run, "pay_and_lose", "uncertain")
    yield "a write whose answer was lost is uncertain", True
    yield f"executed {scene.ledger('f2')} time", scene.ledger("f2") == 1
    scene.client.post(f"/operations/{operation['id']}/reconcile", {"verdict": "occurred", "note": "seen in the ledger"})
    yield f"after a person's verdict the run {(ended := scene.end(run)['state'])}", ended == "completed"
    yield f"executed {scene.ledger('f2')} time in the end", scene.ledger("f2") == 1


def f3(scene: Scene) -> Iterator[tuple[str, bool]]:
    run = scene.start("f3")
    began = scene.stack.layout.var / "workspaces" / PROJECT / run / "began"
    scene.client.until("the sandboxed command", began.exists, END_SECONDS_MAX)
    scene.stack.kill("worker")
    scene.fresh_worker()
    ended, operation = scene.end(run), scene.operation(run, "count_slowly")
    yield f"worker killed with a command running: the run {ended['state']}", ended["state"] == "completed"
    yield f"a fresh sandbox, attempt {operation['attempt']}", operation["attempt"] == 2
    yield f"the command began {len(began.read_text().split())} times", began.read_text().split() == ["began"] * 2


def f4(scene: Scene) -> Iterator[tuple[str, bool]]:
    run = scene.start("f4")
    scene.wait_for_ledger("began-f4")
    scene.stack.kill("worker")
    scene.fresh_worker()
    ended = scene.end(run)
    sequences = [event["sequence"] for event in scene.events(run)]
    yield f"worker killed in a read: the run {ended['state']}", ended["state"] == "completed"
    yield f"{len(sequences)} events without a gap", sequences == list(range(1, len(sequences) + 1))
    scene.client.until("the outbox to be empty", scene.no_lag, END_SECONDS_MAX)
    stored = scene.stored(run)
    yield f"the event store has each of them once: {len(stored)}", len(stored) == len(sequences)


def f5(scene: Scene) -> Iterator[tuple[str, bool]]:
    before = {run["id"] for run in scene.client.items("/runs")}
    scene.stack.stop("temporal")
    status = scene.client.status("/runs", {"agent": "f5", "input": "f5"})
    after = {run["id"] for run in scene.client.items("/runs")}
    yield f"a start without Temporal is answered {status}", status == 503
    yield f"{len(after - before)} runs came of it", after == before
    scene.stack.start("temporal")
    scene.fresh_worker()
    yield f"Temporal back: a run {(ended := scene.end(scene.start('f5'))['state'])}", ended == "completed"


def f6(scene: Scene) -> Iterator[tuple[str, bool]]:
    yield from _store_down(scene, "f6")


def f7(scene: Scene) -> Iterator[tuple[str, bool]]:
    yield from _store_down(scene, "f7")


def _store_down(scene: Scene, name: str) -> Iterator[tuple[str, bool]]:
    """PostgreSQL goes while the model thinks, so that it is away when the call would have to be written down."""
    run = scene.start(name)
    scene.client.until("the model call", lambda: "model.started" in scene.types(run), END_SECONDS_MAX)
    scene.stack.stop("postgres")
    pause(OUTAGE_SECONDS)
    yield f"with the store down the call was executed {scene.ledger(name)} times", scene.ledger(name) == 0
    scene.stack.start("postgres")
    yield f"the store back: the run {(ended := scene.end(run)['state'])}", ended == "completed"
    yield f"executed {scene.ledger(name)} time", scene.ledger(name) == 1


def f8(scene: Scene) -> Iterator[tuple[str, bool]]:
    scene.armed_worker("after_effect:pay=kill")
    run = scene.start("f8")
    scene.client.until("the worker's death", lambda: not scene.stack["worker"].alive(), END_SECONDS_MAX)
    scene.fresh_worker()
    operation = scene.until_state(run, "pay", "uncertain")
    yield "killed after the effect and before its outcome: uncertain", True
    scene.client.post(f"/operations/{operation['id']}/reconcile", {"verdict": "occurred", "note": "seen in the ledger"})
    ended = scene.end(run)
    linked = [event for event in scene.events(run) if event["type"] == "operation.reconciled"]
    yield f"after the verdict the run {ended['state']}", ended["state"] == "completed"
    yield f"executed {scene.ledger('f8')} time", scene.ledger("f8") == 1
    yield "the verdict is linked to the same operation", [e["operation_id"] for e in linked] == [operation["id"]]


def f9(scene: Scene) -> Iterator[tuple[str, bool]]:
    scene.stack.stop("temporality")
    run = scene.start("f9")
    ended, lag = scene.end(run), scene.client.get("/lag")
    yield f"the event store down: the run {ended['state']}", ended["state"] == "completed"
    yield f"lag shows {lag['pending']} events", lag["pending"] >= len(scene.events(run))
    delivered = [event for event in scene.events(run) if event["delivered"]]
    yield f"{len(delivered)} events are shown as delivered", not delivered
    scene.stack.start("temporality")
    scene.client.until("the outbox to be empty", scene.no_lag, END_SECONDS_MAX)
    yield f"it is back and has {len(scene.stored(run))} events", len(scene.stored(run)) == len(scene.events(run))


def f10(scene: Scene) -> Iterator[tuple[str, bool]]:
    run = scene.start("f10")
    scene.end(run)
    scene.client.until("the outbox to be empty", scene.no_lag, END_SECONDS_MAX)
    event = {name: value for name, value in scene.stored(run)[0].items() if name != "received_at"}
    again = scene.send(event)["results"][0]
    yield f"the same event again is {again['status']}", again["status"] == "repeated"
    other = scene.send({**event, "data": {**event["data"], "changed": True}})["results"][0]
    yield f"the same key with another content is {other['status']} ({other['code']})", other["code"] == "conflict"
    kept = [stored for stored in scene.stored(run) if stored["event_id"] == event["event_id"]]
    yield "the first one is untouched and the only one", len(kept) == 1 and kept[0]["data"] == event["data"]


def f11(scene: Scene) -> Iterator[tuple[str, bool]]:
    expired, rejected = scene.start("f11-expired"), scene.start("f11-rejected")
    request = scene.client.until("the request", lambda: _waiting(scene, rejected), END_SECONDS_MAX)
    decision = {"verdict": "reject", "reason": "not today"}
    scene.client.post(f"/approvals/{request['id']}/decide", decision)
    for run, state, told in ((rejected, "rejected", "approval.rejected"), (expired, "expired", "approval.timed_out")):
        ended, operation = scene.end(run), scene.operation(run, "ask_first")
        yield (
            f"{operation['state']}: the run {ended['state']}",
            (operation["state"], ended["state"]) == (state, "completed"),
        )
        yield f"told as {told}", told in scene.types(run)
    executed = scene.ledger("f11-expired") + scene.ledger("f11-rejected")
    yield f"executed {executed} times", executed == 0


def _waiting(scene: Scene, run_id: str) -> Json | None:
    return next(iter(scene.client.items("/approvals", state="waiting", run_id=run_id)), None)


def f12(scene: Scene) -> Iterator[tuple[str, bool]]:
    run = scene.start("f12")
    scene.wait_for_ledger("f12")
    scene.client.post(f"/runs/{run}/cancel", {"reason": "the drill"})
    ended, operation = scene.end(run), scene.operation(run, "pay")
    yield f"cancelled during a call: the run is {ended['state']}", ended["state"] == "cancelled"
    yield (
        f"what had begun is {operation['state']}, not undone",
        operation["state"] in ("succeeded", "uncertain", "reconciled"),
    )
    yield f"the next call was executed {scene.ledger('f12-never')} times", scene.ledger("f12-never") == 0
    yield "the end is told", "run.cancelled" in scene.types(run)


ROWS = (
    Row("F1", "bounded retry of a provider error, started and failed events", f1),
    Row("F2", "one attempt, a classified outcome, no repeat before reconciliation", f2),
    Row("F3", "a fresh sandbox only when the operation is replay-safe", f3),
    Row("F4", "Temporal replays and redelivers; events are deduplicated by id", f4),
    Row("F5", "reject new starts; no claim of durable progress", f5),
    Row("F6", "the store is away before a read: fail closed", f6),
    Row("F7", "the store is away before a write: stop before the effect", f7),
    Row("F8", "crash after the write: do not rerun, mark uncertain, reconcile", f8),
    Row("F9", "the outbox keeps events and retries; lag is shown", f9),
    Row("F10", "duplicate delivery: no-op when equal, conflict when not", f10),
    Row("F11", "a rejected or expired approval ends as declared, with its event", f11),
    Row("F12", "cancel cooperatively; partial execution stays visible", f12),
)


def observe(row: Row, scene: Scene) -> tuple[bool, list[str]]:
    """Play one row; whether it held, and what was observed. A row that cannot be played to its end is broken."""
    seen, held = [], True
    try:
        for what, as_asked in row.act(scene):
            seen.append(what if as_asked else f"NOT AS ASKED: {what}")
            held &= as_asked
    except NotAsPromised as error:
        return False, [*seen, f"NOT AS ASKED: {error}"]
    return held, seen

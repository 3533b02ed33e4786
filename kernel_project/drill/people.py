"""Rows about people: F11, a request that is granted, rejected or not answered, and F12, a run that is cancelled."""

from __future__ import annotations

import time
from collections.abc import Iterator

from kernel_project.devstack.api_client import Json
from kernel_project.drill.scene import END_SECONDS_MAX, Scene, pause

Seen = Iterator[tuple[str, bool]]

OUTCOMES = (  # agent, tool, state of the call, state of the run, last word of the request
    ("f11-granted", "ask_first", "succeeded", "completed", "approval.granted"),
    ("f11-rejected", "ask_first", "rejected", "completed", "approval.rejected"),
    ("f11-expired", "ask_briefly", "expired", "completed", "approval.timed_out"),
    ("f11-cancelled", "ask_or_cancel", "expired", "cancelled", "approval.timed_out"),
)
AWAY_SECONDS = 6.0  # longer than the sweep that tells waiting decisions again waits between two tries
HEALED_SECONDS_MAX = 5.0  # from everything being back to the call


def f11(scene: Scene) -> Seen:
    runs = {agent: scene.start(agent) for agent, *_ in OUTCOMES}
    for agent, verdict in (("f11-granted", "approve"), ("f11-rejected", "reject")):
        _decide(scene, runs[agent], verdict)
    for agent, tool, call_state, run_state, told in OUTCOMES:
        run = runs[agent]
        ended, operation = scene.end(run)["state"], scene.operation(run, tool)
        yield f"{operation['state']}: the run {ended}", (operation["state"], ended) == (call_state, run_state)
        yield f"told as approval.requested and {told}, with actor and policy", _is_told(scene.events(run), told)
    executed = {agent: scene.booked(agent) for agent in runs}
    yield f"executed {executed}", executed == {agent: int(agent == "f11-granted") for agent in runs}
    for service in ("temporal", "worker"):
        yield from _decided_without(scene, service)


def _decided_without(scene: Scene, service: str) -> Seen:
    """A yes that nobody could pass on is not forgotten."""
    agent = f"f11-without-{service}"
    run = scene.start(agent)
    request = scene.client.until("the request", lambda: _waiting(scene, run), END_SECONDS_MAX)
    with scene.without(service):
        _answer(scene, request, "approve")
        pause(AWAY_SECONDS)
        executed = scene.booked(agent)
    scene.client.until("everything to be back", scene.client.is_ready, END_SECONDS_MAX)
    back = time.monotonic()
    scene.wait_for_booking(agent)
    took = time.monotonic() - back
    yield (
        f"approved while the {service} was away: executed {executed} times then, and {took:.1f} s after all was back",
        executed == 0 and took <= HEALED_SECONDS_MAX,
    )
    yield f"the run {(ended := scene.end(run)['state'])}", ended == "completed"


def _decide(scene: Scene, run_id: str, verdict: str) -> None:
    _answer(scene, scene.client.until("the request", lambda: _waiting(scene, run_id), END_SECONDS_MAX), verdict)


def _answer(scene: Scene, request: Json, verdict: str) -> None:
    scene.client.post(f"/approvals/{request['id']}/decide", {"verdict": verdict, "reason": "the drill"})


def _waiting(scene: Scene, run_id: str) -> Json | None:
    return next(iter(scene.client.items("/approvals", state="waiting", run_id=run_id)), None)


def _is_told(events: list[Json], last: str) -> bool:
    """Whether the request's steps are told, in order, each with its actor and the policy that asked for it."""
    steps = [event for event in events if event["type"].startswith("approval.")]
    return [step["type"] for step in steps] == ["approval.requested", last] and all(
        step["envelope"]["data"].get("policy") and "actor" in str(step["envelope"]) for step in steps
    )


def f12(scene: Scene) -> Seen:
    run = scene.start("f12")
    scene.wait_for_booking("f12")
    scene.client.post(f"/runs/{run}/cancel", {"reason": "the drill"})
    ended, operation = scene.end(run), scene.operation(run, "pay")
    yield f"cancelled during a call: the run is {ended['state']}", ended["state"] == "cancelled"
    yield f"what had begun is {operation['state']}", operation["state"] in ("succeeded", "uncertain", "reconciled")
    names = {o["name"] for o in scene.client.items(f"/runs/{run}/operations") if o["position"]}
    yield (
        f"its effect stands {scene.booked('f12')} time, and nothing was undone",
        (scene.booked("f12") == 1 and names == {"pay"}),
    )
    yield f"the next call was executed {scene.booked('f12-never')} times", scene.booked("f12-never") == 0
    types = scene.types(run)
    yield (
        "start, what became of the call, and the cancellation are told",
        ("tool.started" in types and bool({"tool.completed", "tool.failed"} & set(types)) and "run.cancelled" in types),
    )

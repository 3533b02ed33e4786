"""Rows about calls that go wrong: F1 models, F2 tools, F3 sandboxes, F8 a crash after the write."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

from kernel_project.devstack.api_client import Json
from kernel_project.drill import mcp_server
from kernel_project.drill.project import CANARY, LATE, LATE_ANSWERS
from kernel_project.drill.scene import END_SECONDS_MAX, Scene, pause
from runs.loop.agent_loop import MODEL_ATTEMPTS_MAX, TURNS_LOST_MAX

Seen = Iterator[tuple[str, bool]]

UNCERTAIN_SECONDS_MAX = 30.0  # from the worker's death to `uncertain` in the queue: a promise of the kernel's
CANCEL_SECONDS_MAX = 2.0  # from a cancel to the end of a running command: likewise
QUIET_SECONDS = 3.0  # a command that writes ten times a second is dead if it has not written for so long
POST_MORTEM = {"verdict": "occurred", "note": "seen in the ledger"}


def f1(scene: Scene) -> Seen:
    run = scene.start("f1", f"tell nobody: {CANARY}")
    ended, types = scene.end(run), scene.types(run)
    yield f"the run {ended['state']} after two rate limits", ended["state"] == "completed"
    starts, failures = types.count("model.started"), types.count("model.failed")
    yield f"{starts} started, {failures} failed, told in order", (starts, failures) == (3, 2) and _paired(types)
    told = [event for event in scene.events(run) if event["type"].startswith("model.")]
    yield "each names provider and model", all(_names_its_model(event) for event in told)
    yield "the prompt is in no event", CANARY not in json.dumps(told)
    yield from _late_provider(scene)
    hopeless = scene.start("f1-hopeless")
    ended, types = scene.end(hopeless), scene.types(hopeless)
    asked, bound = types.count("model.started"), MODEL_ATTEMPTS_MAX * TURNS_LOST_MAX
    yield (
        f"a provider that never answers is asked {asked} times; the run {ended['state']} as {ended['failure_code']}",
        asked == bound and ended["failure_code"] == "model_overloaded",
    )


def _late_provider(scene: Scene) -> Seen:
    """A provider, over real HTTP, that answers when nobody waits any more, and in time only at last."""
    run = scene.start(LATE)
    ended, events = scene.end(run), scene.events(run)
    failed = [event["envelope"]["data"] for event in events if event["type"] == "model.failed"]
    errors = [data["error_class"] for data in failed]
    yield (
        f"a provider that is late {LATE_ANSWERS} times: {', '.join(errors)}; the run {ended['state']}",
        set(errors) == {"timeout"} and len(errors) >= LATE_ANSWERS and ended["state"] == "completed",
    )


def _paired(types: list[str]) -> bool:
    """Each start of a model call has its end before the next one."""
    calls = [name for name in types if name.startswith("model.")]
    return all(
        start == "model.started" and end in ("model.failed", "model.completed")
        for start, end in zip(calls[::2], calls[1::2], strict=True)
    )


def _names_its_model(event: Json) -> bool:
    data = event["envelope"]["data"]
    return bool(data.get("provider") and data.get("model"))


def f2(scene: Scene) -> Seen:
    run, text = scene.start("f2"), f"f2-{CANARY}"
    operation = scene.until_state(run, "pay_and_lose", "uncertain")
    yield "a write whose answer was lost is uncertain", operation["attempt"] == 1
    yield f"executed {scene.booked(text)} time", scene.booked(text) == 1
    failed = _failure(scene, run)
    yield (
        f"told as {failed['type']}, error {failed['data']['error_class']}, effect {failed['data']['effect']}",
        failed["data"]["effect"] == "uncertain" and failed["operation_id"] == operation["id"],
    )
    yield "its arguments are in no event", CANARY not in json.dumps(scene.events(run))
    pause(QUIET_SECONDS)
    why = scene.client.until("the run to say why it waits", lambda: _waits_for(scene, run), END_SECONDS_MAX)
    waits = scene.client.get(f"/runs/{run}")
    yield f"nothing goes on before it is reconciled: {why}", waits["state"] == "running" and scene.booked(text) == 1
    scene.client.post(f"/operations/{operation['id']}/reconcile", POST_MORTEM)
    yield f"after a person's verdict the run {(ended := scene.end(run)['state'])}", ended == "completed"
    yield f"executed {scene.booked(text)} time in the end", scene.booked(text) == 1
    refused = scene.start("f2-refused")
    ended, failed = scene.end(refused)["state"], _failure(scene, refused)
    effect = failed["data"]["effect"]
    yield f"a call that the other side rejected: effect {effect}; the run {ended}", effect == "none"
    yield from _server_fails(scene)


def _waits_for(scene: Scene, run_id: str) -> str:
    return str(scene.client.get(f"/runs/{run_id}")["waiting_for"])


def _server_fails(scene: Scene) -> Seen:
    """Calls of a real MCP server over stdio: one in which it dies, and one that it says has failed."""
    run, text = scene.start("f2-mcp-dies"), f"f2-mcp-{CANARY}"
    operation = scene.until_state(run, f"{mcp_server.NAME}/pay_and_die", "uncertain")
    failed = _failure(scene, run)
    yield (
        f"an MCP server that dies in a call: {operation['state']}, {failed['data']['error_class']}",
        (operation["attempt"], failed["data"]["effect"]) == (1, "uncertain"),
    )
    scene.client.post(f"/operations/{operation['id']}/reconcile", POST_MORTEM)
    ended = scene.end(run)["state"]
    yield f"executed {scene.booked(text)} time in the end; the run {ended}", scene.booked(text) == 1
    yield "its arguments are in no event", CANARY not in json.dumps(scene.events(run))
    run = scene.start("f2-mcp-fails")
    ended, failed = scene.end(run)["state"], _failure(scene, run)
    effect = failed["data"]["effect"]
    yield f"a call that the server says has failed: effect {effect}; the run {ended}", effect == "none"


def _failure(scene: Scene, run_id: str) -> Json:
    """The first `tool.failed` of the run, with the id of its operation."""
    event = next(event for event in scene.events(run_id) if event["type"] == "tool.failed")
    return {"type": event["type"], "operation_id": event["operation_id"], "data": event["envelope"]["data"]}


def f3(scene: Scene) -> Seen:
    safe, once = scene.start("f3"), scene.start("f3-once")
    began = {run: _workspace(scene, run) / "began" for run in (safe, once)}
    scene.client.until("both commands", lambda: all(path.exists() for path in began.values()), END_SECONDS_MAX)
    scene.stack.kill("worker")
    scene.fresh_worker()
    ended, operation = scene.end(safe), scene.operation(safe, "count_slowly")
    yield f"worker killed with a replay-safe command running: the run {ended['state']}", ended["state"] == "completed"
    yield f"a fresh sandbox, attempt {operation['attempt']}", operation["attempt"] == 2
    yield _times(began[safe], 2)
    told = scene.types(safe)
    yield f"the first attempt is told as failed: {told.count('tool.failed')}", told.count("tool.failed") == 1
    yield _told_lives(scene, safe, ["created", "swept", "created", "ended"])
    operation = scene.until_state(once, "count_once", "uncertain")
    yield "one that is not replay-safe is uncertain", operation["attempt"] == 1
    yield _times(began[once], 1)
    yield _told_lives(scene, once, ["created", "swept"])
    yield from _cancelled_command(scene)


def _times(began: Path, wanted: int) -> tuple[str, bool]:
    count = len(began.read_text().split())
    return f"the command began {count} times", count == wanted


def _cancelled_command(scene: Scene) -> Seen:
    """Cancel a run whose command writes the time ten times a second, and see when it wrote last."""
    run = scene.start("f3-cancel")
    ticks = _workspace(scene, run) / "ticks"
    scene.client.until("the ticking command", ticks.exists, END_SECONDS_MAX)
    cancelled_at = time.time()
    scene.client.post(f"/runs/{run}/cancel", {"reason": "the drill"})
    ended = scene.end(run)
    pause(QUIET_SECONDS)
    last = float(ticks.read_text().split()[-1])
    stopped = last < time.time() - QUIET_SECONDS / 2
    yield (
        f"cancelled: the command wrote for {max(0.0, last - cancelled_at):.1f} s more; the run is {ended['state']}",
        stopped and last - cancelled_at <= CANCEL_SECONDS_MAX and ended["state"] == "cancelled",
    )
    yield _told_lives(scene, run, ["created", "killed"])
    yield "what it had said is kept as an artifact", bool(_lives(scene, run)[-1].get("log_ref"))


def _lives(scene: Scene, run_id: str) -> list[Json]:
    """What was told of the run's sandboxes."""
    return [e["envelope"]["data"] for e in scene.events(run_id) if e["type"].startswith("sandbox.")]


def _told_lives(scene: Scene, run_id: str, wanted: list[str]) -> tuple[str, bool]:
    """Whether each sandbox's beginning and end are told; that of a dead worker is found by a sweep."""
    scene.client.until("the end of each sandbox", lambda: len(_lives(scene, run_id)) >= len(wanted), END_SECONDS_MAX)
    statuses = [life["status"] for life in _lives(scene, run_id)]
    return f"its sandboxes are told as {', '.join(statuses)}", statuses == wanted


def _workspace(scene: Scene, run_id: str) -> Path:
    return scene.stack.layout.var / "workspaces" / scene.project / run_id


def f8(scene: Scene) -> Seen:
    scene.armed_worker("after_effect:pay=kill")
    run = scene.start("f8")
    died_at = scene.worker_died_at()
    yield f"killed with {scene.booked('f8')} effect done and none recorded", scene.booked("f8") == 1
    scene.armed_worker("after_effect:pay_probed#1=kill")
    operation = scene.until_state(run, "pay", "uncertain")
    seconds = time.monotonic() - died_at
    queue = [item["id"] for item in scene.client.items("/operations", state="uncertain")]
    yield (
        f"uncertain in the queue {seconds:.1f} s after the kill, at most {UNCERTAIN_SECONDS_MAX:.0f} s",
        seconds <= UNCERTAIN_SECONDS_MAX and operation["id"] in queue,
    )
    scene.client.post(f"/operations/{operation['id']}/reconcile", POST_MORTEM)
    yield f"after the verdict the run {(ended := scene.end(run)['state'])}", ended == "completed"
    yield f"executed {scene.booked('f8')} time", scene.booked("f8") == 1
    yield "the verdict is linked to the same operation and its intent", _is_linked(scene.events(run), operation["id"])
    yield from _probed(scene)


def _is_linked(events: list[Json], operation_id: str) -> bool:
    """Whether the one verdict names the operation, and the event of its intent as its cause."""
    started = {e["event_id"] for e in events if e["type"] == "tool.started" and e["operation_id"] == operation_id}
    verdicts = [event for event in events if event["type"] == "operation.reconciled"]
    return [e["operation_id"] for e in verdicts] == [operation_id] and all(
        started & set(e["envelope"]["data"]["caused_by"]) for e in verdicts
    )


def _probed(scene: Scene) -> Seen:
    run = scene.start("f8-probed")
    scene.worker_died_at()
    scene.fresh_worker()
    ended, operation = scene.end(run), scene.operation(run, "pay_probed")
    yield (
        f"one that can be looked for is {operation['state']} by itself; the run {ended['state']}",
        (operation["state"], ended["state"]) == ("succeeded", "completed"),
    )
    yield f"executed {scene.booked('f8-probed')} time", scene.booked("f8-probed") == 1

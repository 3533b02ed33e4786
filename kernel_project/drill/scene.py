"""The stage of the drill: a stack, a registered project, one client, and looks at what happened."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any, Protocol

import httpx2
import yaml

from kernel_project.devstack.api_client import Client, Json, NotAsPromised, printed_key
from kernel_project.devstack.layout import Layout
from kernel_project.devstack.stack import ALL
from kernel_project.drill.ledger_process import LedgerProcess

PROJECT = "drill"
END_SECONDS_MAX = 90.0
ENDED = ("completed", "failed", "cancelled")
SCOPES = (
    "runs:start", "runs:read", "runs:cancel", "operations:read", "operations:reconcile", "approvals:read",
    "approvals:decide", "lag:read",
)  # fmt: skip


class Stage(Protocol):
    """A stack whose parts can be taken away: one of our own, or one that `manage.py up` lets us control."""

    @property
    def layout(self) -> Layout: ...
    @property
    def services(self) -> Collection[str]: ...
    def start(self, name: str) -> None: ...
    def stop(self, name: str) -> None: ...
    def kill(self, name: str) -> None: ...
    def restart(self, name: str) -> None: ...
    def alive(self, name: str) -> bool: ...
    def set_variable(self, name: str, value: str | None) -> None: ...
    def environment(self) -> dict[str, str]: ...
    def manage(self, *words: str) -> CompletedProcess[str]: ...


class Scene:
    """The running stack as the drill sees it: through the API, and the event store's own answers.

    `file` is what `load_agents` reads, without its project; `scripts` are the turns of the models that it names, and
    `folder` is where the worker looks for them.
    """

    def __init__(
        self,
        stack: Stage,
        folder: Path,
        ledger: LedgerProcess,
        file: Json,
        scripts: Mapping[str, Sequence[Json]],
        project: str = PROJECT,
    ) -> None:
        self.stack = stack
        self.ledger = ledger
        self.project = project
        self._is_armed = False
        for name, turns in scripts.items():
            (folder / f"{name}.yaml").write_text(yaml.safe_dump(list(turns)))
        path = folder / "project-file.yaml"
        path.write_text(yaml.safe_dump({**file, "project": project}))
        self.manage("load_agents", str(path), "--by", "drill")
        words = ["create_api_key", "--project", project, "--name", "drill", "--user", "admin"]
        key = printed_key(self.manage(*words, *(word for scope in SCOPES for word in ("--scope", scope))))
        self.client = Client(stack.layout.web_url, key)

    def manage(self, *words: str) -> str:
        done = self.stack.manage(*words)
        if done.returncode:
            raise NotAsPromised(f"manage.py {words[0]} failed: {done.stderr.strip()[-500:]}")
        return done.stdout

    # acting

    def start(self, agent: str, text: str = "", key: str = "") -> str:
        headers = {"Idempotency-Key": key} if key else {}
        run: Json = self.client.post("/runs", {"agent": agent, "input": text or agent}, **headers)
        return str(run["id"])

    def end(self, run_id: str) -> Json:
        def look() -> Json | None:
            run: Json = self.client.get(f"/runs/{run_id}")
            return run if run["state"] in ENDED else None

        ended: Json = self.client.until(f"the end of run {run_id}", look, END_SECONDS_MAX)
        return ended

    def armed_worker(self, faults: str) -> None:
        """A worker that breaks at a named point; `fresh_worker` replaces it."""
        self._is_armed = True
        self.stack.set_variable("KERNEL_FAULTS", faults)
        self.stack.restart("worker")

    def fresh_worker(self) -> None:
        self.stack.set_variable("KERNEL_FAULTS", None)
        self.stack.restart("worker")
        self._is_armed = False

    @contextmanager
    def without(self, name: str) -> Iterator[None]:
        """The time without a part of the stack; it runs again afterwards, whatever happened inside."""
        self.stack.stop(name)
        try:
            yield
        finally:
            self.stack.start(name)

    def mend(self) -> None:
        """Bring back what is still missing or armed when a row has ended, however it ended."""
        for name in ALL:
            if name in self.stack.services and not self.stack.alive(name):
                self.stack.start(name)
        if self._is_armed:
            self.fresh_worker()

    def worker_died_at(self) -> float:
        """Wait until the armed worker is dead; the monotonic time of that."""
        self.client.until("the worker's death", lambda: not self.stack.alive("worker"), END_SECONDS_MAX)
        return time.monotonic()

    # looking

    def booked(self, text: str) -> int:
        """How often a call with this text was executed, as its other side has counted."""
        return self.ledger.counts()[text]

    def wait_for_booking(self, text: str) -> None:
        self.client.until(f"the call {text}", lambda: self.booked(text), END_SECONDS_MAX)

    def events(self, run_id: str) -> list[Json]:
        return self.client.items(f"/runs/{run_id}/events")

    def types(self, run_id: str) -> list[str]:
        return [str(event["type"]) for event in self.events(run_id)]

    def operation(self, run_id: str, name: str) -> Json:
        found = (o for o in self.client.items(f"/runs/{run_id}/operations") if o["name"] == name)
        return next(found, {})

    def until_state(self, run_id: str, name: str, state: str) -> Json:
        def look() -> Json | None:
            operation = self.operation(run_id, name)
            return operation if operation.get("state") == state else None

        found: Json = self.client.until(f"{name} to be {state}", look, END_SECONDS_MAX)
        return found

    def no_lag(self) -> bool:
        return bool(self.client.get("/lag")["pending"] == 0)

    def stored(self, run_id: str) -> list[Json]:
        """The run's events as the event store has them."""
        answer = self._store("GET", params={"project": self.project, "run": run_id, "limit": "500"})
        events: list[Json] = answer.json()["events"]
        return events

    def send(self, *events: Json) -> Json:
        """Deliver events to the event store, past the outbox."""
        answer: Json = self._store("POST", json={"events": list(events)}).json()
        return answer

    def _store(self, method: str, **request: Any) -> httpx2.Response:
        token = self.stack.environment()["TEMPORALITY_TOKEN"]
        url = f"{self.stack.layout.temporality_url}/v1/observations/events"
        return httpx2.request(method, url, headers={"Authorization": f"Bearer {token}"}, trust_env=False, **request)


def pause(seconds: float) -> None:
    """Let something stay broken for a while; what is observed afterwards does not depend on how long."""
    time.sleep(seconds)

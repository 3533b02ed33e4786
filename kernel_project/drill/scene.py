"""The stage of the drill: a stack of its own, a registered project, one client, and looks at what happened."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx2
import yaml

from kernel_project.devstack.api_client import Client, Json, NotAsPromised
from kernel_project.devstack.stack import Stack
from kernel_project.drill.tools import LEDGER_VARIABLE

PROJECT = "drill"
END_SECONDS_MAX = 90.0
ENDED = ("completed", "failed", "cancelled")
TOOLS = ("look", "pay", "pay_and_lose", "ask_first")
SCOPES = (
    "runs:start", "runs:read", "runs:cancel", "operations:read", "operations:reconcile", "approvals:read",
    "approvals:decide", "lag:read",
)  # fmt: skip


def environment(var: Path) -> dict[str, str]:
    """What the stack's processes need to know of the drill."""
    return {
        "KERNEL_SCRIPTS": str(var / "drill"),
        "KERNEL_TOOL_MODULES": "kernel_project.drill.tools",
        LEDGER_VARIABLE: str(var / "drill" / "ledger"),
    }


class Scene:
    """The running stack as the drill sees it: through the API, the ledger and the event store's own answers."""

    def __init__(self, stack: Stack, agents: Mapping[str, Sequence[Json]], policies: Sequence[Json]) -> None:
        self.stack = stack
        self.folder = stack.layout.var / "drill"
        self.folder.mkdir(parents=True, exist_ok=True)
        self._register(agents, policies)
        words = ["create_api_key", "--project", PROJECT, "--name", "drill", "--user", "admin"]
        printed = self.manage(*words, *(word for scope in SCOPES for word in ("--scope", scope)))
        key = next(word for word in printed.split() if word.startswith("ak_"))
        self.client = Client(stack.layout.web_url, key)

    def _register(self, agents: Mapping[str, Sequence[Json]], policies: Sequence[Json]) -> None:
        for name, turns in agents.items():
            (self.folder / f"{name}.yaml").write_text(yaml.safe_dump(list(turns)))
        file = {
            "project": PROJECT,
            "tools": [
                *({"kind": "python", "module": "kernel_project.drill.tools", "function": name} for name in TOOLS),
                COUNT,
            ],
            "policies": list(policies),
            "agents": [
                {"name": name, "model": f"scripted:{name}.yaml", "tools": [*TOOLS, "count_slowly"]} for name in agents
            ],
        }
        path = self.folder / "project.yaml"
        path.write_text(yaml.safe_dump(file))
        self.manage("load_agents", str(path), "--by", "drill")

    def manage(self, *words: str) -> str:
        done = self.stack.manage(*words)
        if done.returncode:
            raise NotAsPromised(f"manage.py {words[0]} failed: {done.stderr.strip()[-500:]}")
        return done.stdout

    # acting

    def start(self, agent: str) -> str:
        run: Json = self.client.post("/runs", {"agent": agent, "input": agent})
        return str(run["id"])

    def end(self, run_id: str) -> Json:
        def look() -> Json | None:
            run: Json = self.client.get(f"/runs/{run_id}")
            return run if run["state"] in ENDED else None

        ended: Json = self.client.until(f"the end of run {run_id}", look, END_SECONDS_MAX)
        return ended

    def armed_worker(self, faults: str) -> None:
        """A worker that breaks at a named point; `fresh_worker` replaces it."""
        self.stack.extra_environment["KERNEL_FAULTS"] = faults
        self.stack.restart("worker")

    def fresh_worker(self) -> None:
        self.stack.extra_environment.pop("KERNEL_FAULTS", None)
        self.stack.restart("worker")

    # looking

    def ledger(self, text: str) -> int:
        """How often a call with this text was executed."""
        path = self.folder / "ledger"
        lines = path.read_text().splitlines() if path.exists() else []
        return sum(line.split()[0] == text for line in lines)

    def wait_for_ledger(self, text: str) -> None:
        self.client.until(f"the call {text}", lambda: self.ledger(text), END_SECONDS_MAX)

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
        answer = self._store("GET", params={"project": PROJECT, "run": run_id, "limit": "500"})
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


COUNT: Json = {
    "kind": "sandbox",
    "name": "count_slowly",
    "description": "Count for a while in the sandbox.",
    "effect": "read",
    "replay_safe": True,
    "timeout_seconds": 60,
    "input_schema": {"type": "object", "properties": {}, "additionalProperties": False},
    "configuration": {"argv": ["/bin/sh", "-c", "echo began >> began; sleep 6; echo counted"]},
}


def pause(seconds: float) -> None:
    """Let something stay broken for a while; what is observed afterwards does not depend on how long."""
    time.sleep(seconds)

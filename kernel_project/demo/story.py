"""The demo: a run with an approval, a run whose worker is killed right after its commit, and what came of both."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx2
from django.conf import settings

from kernel_project.demo import stage
from kernel_project.devstack.api_client import Client, Json, NotAsPromised, printed_key
from kernel_project.devstack.layout import PROJECT_ROOT, Layout
from kernel_project.devstack.stack import ALL, Stack

RUN_SECONDS_MAX = 120.0
PERSON_SECONDS_MAX = 3_600.0
LAG_SECONDS_MAX = 30.0
COMMIT = "git/git_commit"
KILL_AFTER_SECOND_COMMIT = f"after_effect:{COMMIT}#2=kill"
Say = Callable[[str], None]


@dataclass(frozen=True)
class Told:
    """One run of the demo."""

    title: str
    run: Json
    events: list[Json]
    operations: list[Json]
    folder: Path
    killed: bool


class Demo:
    """Plays the demo on a stack; `check` collects what is not as promised."""

    def __init__(self, stack: Stack, say: Say, *, interactive: bool) -> None:
        self.stack, self.say, self.interactive = stack, say, interactive
        self.wrong: list[str] = []
        self.before = 0  # commits of a fresh clone

    def play(self, repository: str) -> list[str]:
        """Both runs and their accounts; returns what is not as it should be."""
        self.stack.set_variable("KERNEL_FAULTS", KILL_AFTER_SECOND_COMMIT)
        with ThreadPoolExecutor(2) as pool:  # the server is installed while the stack starts
            program = pool.submit(stage.git_server, self.stack.layout.var)
            self.stack.start_all()
            self.say("the stack is up: PostgreSQL, Valkey, Temporal, event store, web, worker, Celery, beat")
        workspaces = self.stack.layout.var / "workspaces"
        folders = [stage.clone(repository, workspaces, name) for name in ("first", "second")]
        self.before = len(stage.commits_of(folders[0]))
        self.say(f"cloned {repository} twice; {self.before} commits each")
        stage.register(self.stack, program.result(), folders[0])
        self.say("registered the MCP server git, its tools, a policy and the agent repository-reporter")
        applicant, approver = self._application(), self._approver()
        first = self._first_run(applicant, approver, folders[0])
        second = self._second_run(applicant, approver, folders[1])
        for told in (first, second):
            self._account(told)
        self._lag(applicant)
        for told in (first, second):
            self._seen_there(told)
            self._git_log(told)
        return self.wrong

    def _first_run(self, applicant: Client, approver: Client, folder: Path) -> Told:
        run = self._start(applicant, folder)
        self._approve(approver, run["id"])
        return self._ended(applicant, run["id"], folder, "Run 1: an approval, then the commit")

    def _second_run(self, applicant: Client, approver: Client, folder: Path) -> Told:
        """The worker's fault kills it (SIGKILL) between its second commit and that one's settlement."""
        run = self._start(applicant, folder)
        self._approve(approver, run["id"])
        worker = self.stack["worker"]
        applicant.until("the worker's death", lambda: not worker.alive(), RUN_SECONDS_MAX)
        self.say("the worker was killed (SIGKILL) right after the commit; a new one starts")
        self.stack.set_variable("KERNEL_FAULTS", None)
        self.stack.restart("worker")
        return self._ended(applicant, run["id"], folder, "Run 2: the worker killed right after the commit", killed=True)

    def _start(self, client: Client, folder: Path) -> Json:
        body = {"agent": "repository-reporter", "input": f"Report on {folder}.", "workspace": folder.name}
        run: Json = client.post("/runs", body, **{"Idempotency-Key": f"demo-{folder.name}-{time.time_ns()}"})
        self.say(f"started run {run['id']}")
        return run

    def _approve(self, approver: Client, run_id: str) -> None:
        approval = approver.until("the request for approval", lambda: _waiting(approver, run_id), RUN_SECONDS_MAX)
        where = f"{self.stack.layout.web_url}/admin/approvals/approval/{approval['id']}/change/"
        if self.interactive:
            self.say(f"run {run_id} waits for you: approve or reject at {where}")
            approver.until("your decision", lambda: not _waiting(approver, run_id), PERSON_SECONDS_MAX)
            return
        approver.post(f"/approvals/{approval['id']}/decide", {"verdict": "approve", "reason": "the demo's approver"})
        self.say(f"the approver granted {approval['tool']} ({where})")

    def _ended(self, client: Client, run_id: str, folder: Path, title: str, *, killed: bool = False) -> Told:
        def look() -> Json | None:
            run: Json = client.get(f"/runs/{run_id}")
            return run if run["state"] in ("completed", "failed", "cancelled") else None

        run = client.until(f"the end of run {run_id}", look, RUN_SECONDS_MAX)
        events, operations = client.items(f"/runs/{run_id}/events"), client.items(f"/runs/{run_id}/operations")
        return Told(title, run, events, operations, folder, killed)

    def _account(self, told: Told) -> None:
        """The run's timeline, and whether it ended as it should."""
        self.say("")
        self.say(told.title)
        names = {operation["id"]: operation for operation in told.operations}
        for event in told.events:
            operation = names.get(event.get("operation_id") or "", {})
            state = f"{operation['name']}: {operation['state']}" if operation else ""
            self.say(f"  {event['occurred_at'][11:23]}  {event['sequence']:>3}  {event['type']:<20} {state}")
        self._check(told.run["state"] == "completed", f"{told.title} ended as {told.run['state']}")
        sequences = [event["sequence"] for event in told.events]
        self._check(sequences == list(range(1, len(sequences) + 1)), f"{told.title} has gaps in its sequence")
        commits = [operation for operation in told.operations if operation["name"] == COMMIT]
        self._check([o["state"] for o in commits] == ["succeeded"], f"{told.title}: the commit is not settled")

    def _lag(self, client: Client) -> None:
        """The lag as it falls to zero: a line for each other number."""
        self.say("")
        pending: list[int] = []

        def look() -> bool:
            lag: Json = client.get("/lag")
            if [lag["pending"]] != pending[-1:]:
                pending.append(lag["pending"])
                self.say(f"outbox: {json.dumps(lag)}")
            return bool(lag["pending"] == 0)

        client.until("the outbox to be empty", look, LAG_SECONDS_MAX)

    def _seen_there(self, told: Told) -> None:
        """What the event store has, asked of itself."""
        token = self.stack.environment()["TEMPORALITY_TOKEN"]
        answer = httpx2.get(
            f"{self.stack.layout.temporality_url}/v1/observations/events",
            params={"project": "demo", "run": told.run["id"], "limit": "500"},
            headers={"Authorization": f"Bearer {token}"},
            trust_env=False,
        )
        stored = answer.json().get("events", []) if answer.status_code == 200 else []
        count = len(stored) if answer.status_code == 200 else f"HTTP {answer.status_code}"
        self.say(f"the event store has {count} of {len(told.events)} events of run {told.run['id']}")
        self._check(count == len(told.events), f"{told.title}: the event store has {count} events")
        found_by = [event["data"]["found_by"] for event in stored if event["data"].get("found_by")]
        if told.killed:
            self.say(f"the commit whose outcome was lost was settled by: {found_by}")
            self._check(found_by == ["probe"], f"{told.title}: the commit was not found by its probe")

    def _git_log(self, told: Told) -> None:
        commit = next((o for o in told.operations if o["name"] == COMMIT), None)
        lines = stage.commits_of(told.folder, commit["id"]) if commit else []
        self.say(f"git log of {told.folder}: {lines}")
        self._check(len(lines) == 1, f"{told.title} made {len(lines)} commits, not exactly one")
        made = len(stage.commits_of(told.folder)) - self.before
        self._check(made == 1, f"{told.title}: the repository has {made} more commits than before")

    def _check(self, holds: bool, otherwise: str) -> None:
        if not holds:
            self.wrong.append(otherwise)

    def _key(self, name: str, *scopes: str, user: str = "") -> Client:
        words = ["create_api_key", "--project", "demo", "--name", f"demo {name}"]
        for scope in scopes:
            words += ["--scope", scope]
        printed = stage.manage(*words, *(["--user", user] if user else []))
        return Client(self.stack.layout.web_url, printed_key(printed))

    def _application(self) -> Client:
        return self._key("application", "runs:start", "runs:read", "operations:read", "lag:read")

    def _approver(self) -> Client:
        """The demo's approver: a person of the group that the policy names, with a key of their own."""
        rights = ("--permission", "approvals.view_approval", "--permission", "approvals.decide_approval")
        stage.manage("ensure_user", "demo-approver", "--group", "approvers", *rights)
        return self._key("approver", "approvals:read", "approvals:decide", user="demo-approver")


def _waiting(client: Client, run_id: str) -> Json | None:
    waiting = client.items("/approvals", state="waiting")
    return next((approval for approval in waiting if approval["run_id"] == run_id), None)


def run(repository: str, say: Say, *, interactive: bool) -> list[str]:
    """Play the demo on the embedded stack; returns what is not as promised."""
    layout = Layout.from_environment()
    if settings.PRODUCTION or settings.ENV.database_url != layout.database_url("kernel"):
        raise NotAsPromised("it plays on the embedded servers only: unset KERNEL_MODE, DATABASE_URL and their like")
    stack = Stack(layout, ALL, ui=interactive)
    try:
        wrong = Demo(stack, say, interactive=interactive).play(repository or str(PROJECT_ROOT))
        say("")
        say(f"look around: `make up`, then {layout.web_url}/admin/ as admin with the password in")
        say(f"  {layout.var / 'secrets' / 'admin_password'}")
        return wrong
    finally:
        stack.stop_all()

"""A running event store for tests: its own database in the embedded PostgreSQL, and the real server process.

As a program it starts one with tokens and runs a checker of the wire contract against it:

    python -m tests.temporality_server PATH/TO/wire_check.py [--json …]
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

import psycopg

from kernel_project.devstack.postgres import Postgres
from temporality.envelope import decode_batch, read_event
from temporality.inbox import columns
from temporality.sql import statement

START_SECONDS = 30
STOP_SECONDS = 15
ANSWER_SECONDS = 30
TEMPLATE = "events_template"
POLL_SECONDS = 0.05
ROOT = Path(__file__).resolve().parents[1]
EVENTS = "/v1/observations/events"

Event = dict[str, Any]


class Answer(NamedTuple):
    """One HTTP answer."""

    status: int
    json: Any
    headers: Mapping[str, str]

    @property
    def codes(self) -> list[str]:
        return [result["code"] for result in self.json["results"]]

    @property
    def statuses(self) -> list[str]:
        return [result["status"] for result in self.json["results"]]


@dataclass
class EventStore:
    """One database and the server process on it."""

    database_url: str
    port: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def environment(self) -> dict[str, str]:
        mine = {
            "TEMPORALITY_DATABASE_URL": self.database_url,
            "DJANGO_SETTINGS_MODULE": "kernel_project.settings_temporality",
        }
        return os.environ | mine

    def command(self, *arguments: str) -> str:
        """Run manage.py and return what it prints."""
        command = [sys.executable, "manage.py", *arguments]
        done = subprocess.run(command, cwd=ROOT, env=self.environment(), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def token(self, *projects: str, role: str = "writer", sources: Sequence[str] = ()) -> str:
        options = [f"--project={project}" for project in projects] or ["--all-projects"]
        options += [f"--source={source}" for source in sources]
        return self.command("temporality_token", "create", "--name", uuid.uuid4().hex, "--role", role, *options)

    def start(self) -> None:
        command = [sys.executable, "-m", "uvicorn", "kernel_project.asgi_temporality:application"]
        options = ["--port", str(self.port), "--log-level", "warning", "--no-access-log"]
        self.process = subprocess.Popen([*command, *options], cwd=ROOT, env=self.environment())
        deadline = time.monotonic() + START_SECONDS
        while self.get("/healthz").status != 200:
            assert self.process.poll() is None, "the event store ended while starting"
            assert time.monotonic() < deadline, "the event store did not start in time"
            time.sleep(POLL_SECONDS)

    def kill(self) -> None:
        """End it at once, in the middle of whatever it does."""
        assert self.process
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(STOP_SECONDS)

    def stop(self) -> None:
        if self.process and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(STOP_SECONDS)

    def request(self, method: str, path: str, token: str = "", body: bytes | None = None) -> Answer:
        """Status 0: there was no answer."""
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
        request = urllib.request.Request(self.url + path, body, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as response:
                return Answer(response.status, json.loads(response.read()), dict(response.headers))
        except urllib.error.HTTPError as error:
            return Answer(error.code, json.loads(error.read()), dict(error.headers))
        except OSError:
            return Answer(0, None, {})

    def post(self, token: str, *events: Event) -> Answer:
        return self.request("POST", EVENTS, token, json.dumps({"events": events}).encode())

    def get(self, path: str, token: str = "", **parameters: Any) -> Answer:
        query = urlencode({name: value for name, value in parameters.items() if value is not None}, doseq=True)
        return self.request("GET", f"{path}?{query}", token)

    def settled(self, token: str, project: str) -> dict[str, Any]:
        """Wait until the projection has read everything; returns the lag's answer."""
        deadline = time.monotonic() + ANSWER_SECONDS
        while True:
            lag: dict[str, Any] = self.get("/v1/observations/lag", token, project=project).json
            if lag["head"] == lag["position"] and "ready" not in lag["held_back"]:
                return lag
            assert time.monotonic() < deadline, f"the projection does not catch up: {lag}"
            time.sleep(POLL_SECONDS)


def migrated(postgres: Postgres) -> EventStore:
    """A fresh event store whose server does not run."""
    name = f"events_{uuid.uuid4().hex[:12]}"
    _ensure_template(postgres)
    with postgres.connect() as connection:
        connection.execute(f'CREATE DATABASE "{name}" TEMPLATE "{TEMPLATE}"')
    return EventStore(postgres.url(name), free_port())


def _ensure_template(postgres: Postgres) -> None:
    """A migrated database that nobody uses: a copy of it is there in no time."""
    with postgres.connect() as connection:
        if connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [TEMPLATE]).fetchone():
            return
    half_made = f"{TEMPLATE}_{uuid.uuid4().hex[:12]}"
    postgres.ensure_database(half_made)
    store = EventStore(postgres.url(half_made), free_port())
    store.command("migrate", "temporality", "--database", "temporality", "--verbosity", "0")
    with postgres.connect() as connection:
        connection.execute(f'ALTER DATABASE "{half_made}" RENAME TO "{TEMPLATE}"')


@contextlib.contextmanager
def running(postgres: Postgres) -> Iterator[EventStore]:
    """A fresh, migrated event store that is up."""
    store = migrated(postgres)
    store.start()
    try:
        yield store
    finally:
        store.stop()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def event(project: str, kind: str = "test.note", source: str = "", event_id: str = "", **members: Any) -> Event:
    """A valid event. `context` adds to the context, other members replace."""
    context = {"project": project} | members.pop("context", {})
    return {
        "schema": "temporality.event/1",
        "event_id": event_id or uuid.uuid4().hex,
        "occurred_at": "2025-03-01T10:00:00.000000Z",
        "source": {"id": source or f"source-of-{project}", "integration": "tests"},
        "context": context,
        "type": kind,
    } | members


def put(connection: psycopg.Connection[Any], *texts: str) -> None:
    """Write events into the inbox as the server does, without HTTP: in the connection's transaction, if it has one."""
    batch = decode_batch(('{"events":[' + ",".join(texts) + "]}").encode())
    connection.execute(statement("insert_events"), columns([read_event(one) for one in batch]))


def check(script: str, *arguments: str) -> int:
    """Start everything in a temporary folder and run the checker with the tokens it needs."""
    from kernel_project.devstack.ports import private_layout

    with tempfile.TemporaryDirectory(prefix="temporality-check-") as folder:
        Path(folder).chmod(0o711)
        with Postgres(private_layout(Path(folder)), durable=False) as postgres, running(postgres) as store:
            tokens = ["--token", store.token("checked"), "--reader-token", store.token("checked", role="reader")]
            tokens += ["--foreign-token", store.token("another"), "--project", "checked"]
            command = [sys.executable, script, "--url", store.url, *tokens, *arguments]
            return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(check(*sys.argv[1:]))

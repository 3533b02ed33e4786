"""A secret in prompt, arguments and result is found in the artifacts, where it belongs, and nowhere else."""

from __future__ import annotations

import asyncio
import logging

import pytest
from django.conf import settings
from django.db import connection, connections

from kernel_project.primitives import keyring
from kernel_project.primitives.ids import workflow_id
from outbox.models import Event
from runs.boundary import artifacts, objects
from runs.models import Artifact, Run, Tool
from tests import console
from tests.api_client import api_for
from tests.kernel import begin, call, calls, decide, ended, make_project, make_tool, rule, says, waits

pytestmark = [
    pytest.mark.django_db(transaction=True, databases=["default", "temporality"]),
    pytest.mark.usefixtures("carrier"),
]
CANARY = "canary-7d1f4e92c0"
BODIES = "runs_artifact"  # what declares to hold bodies


@pytest.fixture
def run(caplog) -> Run:
    caplog.set_level(logging.INFO)
    project = make_project()
    make_tool(project, "note", lambda dispatch, text: f"wrote {text}", idempotent_for_seconds=3600)
    make_tool(project, "fail", broken, effect="read")
    wanted = [call("note", text=CANARY), call("fail", text=CANARY)]
    return ended(begin([calls(*wanted), says(f"I know {CANARY}.")], ["note", "fail"], project=project, text=CANARY))


def broken(dispatch: object, text: str) -> str:
    raise ValueError(f"cannot use {text}")


def tables_with(canary: str, alias: str) -> set[str]:
    """Every table that has it in any column, as text or as bytes."""
    found = set()
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        for (table,) in cursor.fetchall():
            wanted = [f"%{canary}%", f"%{canary.encode().hex()}%"]
            cursor.execute(f"SELECT count(*) FROM {table} t WHERE t::text LIKE %s OR t::text LIKE %s", wanted)
            if cursor.fetchone()[0]:
                found.add(table)
    return found


def history(run: Run) -> bytes:
    """All that Temporal keeps of the run, with its payloads as they are."""
    from runs.loop.temporal import connect

    async def fetch() -> bytes:
        client = await connect()
        events = (await client.get_workflow_handle(workflow_id(run.id)).fetch_history()).events
        return b"".join(event.SerializeToString() for event in events)

    return asyncio.run(fetch())


def test_the_canary_is_found_in_artifacts_and_nowhere_else(caplog, run):
    assert run.state == "completed"
    assert any(CANARY.encode() in bytes(one.body) for one in Artifact.objects.filter(run=run) if one.body)
    assert tables_with(CANARY, "default") == {BODIES}
    assert tables_with(CANARY, "temporality") == set()
    assert Event.objects.filter(run_id=run.id).count() > 5
    kept = history(run)
    assert str(run.id).encode() in kept
    assert CANARY.encode() not in kept
    logged = [record.getMessage() for record in caplog.get_records("setup")]
    assert any("is unclear" in line for line in logged)
    assert not [line for line in logged if CANARY in line]
    api = api_for(run.project, "runs:read", "operations:read", "approvals:read")
    operations = api.get("/operations").data["items"]
    paths = ["/runs", f"/runs/{run.id}/events", "/operations", *(f"/operations/{one['id']}" for one in operations)]
    assert not [path for path in paths if CANARY in api.get(path).content.decode()]
    client = console.logged_in(console.viewer("vera"))
    connection.ensure_connection()
    lists = ["runs/run", "runs/operation", "outbox/event", "outbox/stream", "approvals/approval"]
    assert not [one for one in lists if CANARY in client.get(f"/admin/{one}/").content.decode()]


def test_a_declared_secret_is_known_to_the_effect_alone(caplog, monkeypatch):
    """Sealed where the model writes it, named where it comes from the environment; bound by a person's yes like any."""
    monkeypatch.setenv("TEN_KEY", keyring.new_key())
    monkeypatch.setenv("TEN_TOKEN", f"{CANARY}-token")
    monkeypatch.setattr(settings, "ARTIFACT_KEYS", "k=env:TEN_KEY")
    objects.keys.cache_clear()
    caplog.set_level(logging.INFO)
    project, given = make_project(), []

    def login(dispatch: object, text: str, auth: dict[str, str]) -> str:
        given.append((text, auth["token"]))
        return f"welcome, {text} {auth['token']}"

    make_tool(project, "login", login)
    broken_tool = make_tool(project, "fail", broken, effect="read")
    for tool, paths in (("login", {"text": {}, "auth.token": {"from_env": "TEN_TOKEN"}}), ("fail", {"text": {}})):
        Tool.objects.filter(project=project, name=tool).update(
            configuration={**broken_tool.configuration, "secret_arguments": paths}, input_schema={"type": "object"}
        )
    rule(project, "login")
    wanted = [call("login", text=CANARY), call("fail", text=CANARY)]
    run = begin([calls(*wanted), says(f"done with {CANARY[:6]}")], ["login", "fail"], project=project)
    asked, _ = waits(run, "awaiting_approval", "failed")
    decide(asked, "approve")
    assert ended(run).state == "completed"
    assert given == [(CANARY, f"{CANARY}-token")]
    bodies = [artifacts.read(run.id, one.digest) for one in Artifact.objects.filter(run=run)]
    assert any(b"secret:sealed:k:" in body for body in bodies)
    assert any(b"welcome, [a secret argument] [a secret argument]" in body for body in bodies)
    assert not [body for body in bodies if CANARY.encode() in body]
    assert tables_with(CANARY, "default") == set()
    assert CANARY.encode() not in history(run)
    assert not [record for record in caplog.records if CANARY in record.getMessage()]
    objects.keys.cache_clear()

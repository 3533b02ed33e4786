"""A secret in prompt, arguments and result is found in the artifacts, where it belongs, and nowhere else."""

from __future__ import annotations

import asyncio
import logging

import pytest
from django.db import connection, connections

from kernel_project.primitives.ids import workflow_id
from outbox.models import Event
from runs.models import Artifact, Run
from tests import console
from tests.api_client import api_for
from tests.kernel import begin, call, calls, ended, make_project, make_tool, says

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

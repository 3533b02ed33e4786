"""C25. What a command says of its environment reaches results, events and artifacts, and the worker's secrets none."""

from __future__ import annotations

import secrets

import pytest

from outbox.models import Event
from runs.boundary.intents import Wanted
from runs.models import Artifact, Operation, Tool
from tests.boundary_scene import allow_all, committed, make_project, make_run, perform_now, propose

pytestmark = pytest.mark.usefixtures("committed")
__all__ = ["committed"]

LOOK = "env; tr '\\0' '\\n' < /proc/1/environ; tr '\\0' '\\n' < /proc/$PPID/environ; cat /proc/*/environ; ssh-add -l"


def test_a_canary_of_the_worker_stands_in_no_row(monkeypatch, caplog):
    canary = f"canary-{secrets.token_hex(16)}"
    for name in (
        "DATABASE_URL_OLD",
        "OPENAI_API_KEY",
        "SSH_AUTH_SOCK",
        "GIT_ASKPASS",
        "PGSERVICEFILE",
        "INVENTED_LATER",
    ):
        monkeypatch.setenv(name, canary)
    project = make_project()
    tool = Tool.objects.create(
        project=project, kind="sandbox", name="look", remote_name="look", exposed_name="look", effect="read",
        input_schema={"type": "object"}, definition_digest="d", configuration={"argv": ["/bin/sh", "-c", LOOK]},
    )  # fmt: skip
    allow_all(project)
    run = make_run(project, [tool.name])
    from runs.boundary import workspaces

    workspaces.ensure(run)
    [operation] = propose(run, Wanted("look", {}))
    assert perform_now(operation.id).state in ("succeeded", "tool_error")
    row = Operation.objects.get(id=operation.id)
    bodies = [bytes(body or b"") for body in Artifact.objects.filter(run=run).values_list("body", flat=True)]
    told = "".join(Event.objects.filter(run_id=run.id).values_list("envelope", flat=True))
    assert any(b"OPERATION_ID=" in body for body in bodies), "the command did not even see its own environment"
    for text in (str(row.__dict__), told, caplog.text, *map(str, bodies)):
        assert canary not in text

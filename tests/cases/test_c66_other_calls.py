"""C66. No transaction or row lock is held over a model call, a command or a request, whoever looks meanwhile."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from kernel_project.devstack.process import Server
from runs.boundary import workspaces
from runs.boundary.intents import Wanted
from runs.models import Tool
from tests.boundary_scene import allow_all, at_once, committed, make_project, make_run, perform_now, propose
from tests.fakes.http_api import Api, Handler, http_api, usual
from tests.waiting import until_sync

pytestmark = pytest.mark.usefixtures("committed")
__all__ = ["committed"]

OPEN = (
    "SELECT state, query FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() "
    "AND datname = current_database() AND (state LIKE 'idle in transaction%%' OR xact_start < now() - interval '0.5 s')"
)


def open_transactions(postgres: Server) -> list[Any]:
    from django.db import connection

    with postgres.connect(connection.settings_dict["NAME"]) as other:
        return list(other.execute(OPEN))


def tool_of(kind: str, **more: Any):
    project = make_project()
    tool = Tool.objects.create(
        project=project, kind=kind, name="call", remote_name="call", exposed_name="call", effect="write",
        input_schema={"type": "object"}, definition_digest="d", **more,
    )  # fmt: skip
    allow_all(project)
    run = make_run(project, [tool.name])
    workspaces.ensure(run)
    return propose(run, Wanted("call", {}))[0]


def test_over_a_request(postgres: Server):
    seen: list[Any] = []

    def plan(handler: Handler) -> None:
        time.sleep(0.6)
        seen.extend(open_transactions(postgres))
        usual(handler)

    with http_api(Api(plan=plan)) as api:
        request = {"method": "POST", "url": api.url(), "private_hosts": ["127.0.0.1"]}
        assert perform_now(tool_of("http", configuration={"request": request}).id).state == "succeeded"
    assert seen == []


def test_over_a_command(postgres: Server):
    operation = tool_of("sandbox", configuration={"argv": ["/bin/sh", "-c", "echo > begun; sleep 2"]})
    begun = workspaces.path(operation.run) / "begun"
    performing = threading.Thread(target=lambda: at_once(lambda: perform_now(operation.id)))
    performing.start()
    until_sync(begun.exists, 30)
    time.sleep(0.6)
    assert open_transactions(postgres) == []
    performing.join(30)

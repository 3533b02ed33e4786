"""C22. A cancelled run ends its running command: measured from the call of the API to the end of the last process."""

from __future__ import annotations

import time

import pytest
from django.conf import settings

from runs.boundary.sandbox import capabilities
from runs.models import Tool
from tests.api_client import api_for
from tests.kernel import begin, call, calls, ended, make_project, rule, says, states, told
from tests.sandbox_commands import marker, processes_with, wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("carrier", "valkey")]

CANCEL_SECONDS_MAX = 2.0
AFTER_SECONDS = (0.3, 1.1, 1.9)  # the command runs that long: at different moments between two heartbeats


def make_shell(project) -> None:
    waived = {} if capabilities().met else {"accept_missing": ["tree_limits"]}
    Tool.objects.create(
        project=project, kind="sandbox", name="shell", remote_name="shell", exposed_name="shell", effect="write",
        input_schema={"type": "object", "properties": {"command": {"type": "string"}}}, definition_digest="d" * 64,
        timeout_seconds=60, configuration={"argv": ["/bin/sh", "-c", "{command}"], **waived},
    )  # fmt: skip
    rule(project, "shell", "allow")


@pytest.mark.parametrize("after_seconds", AFTER_SECONDS)
def test_the_whole_tree_has_ended_within_two_seconds(after_seconds) -> None:
    project, word = make_project(), marker()
    make_shell(project)
    tree = f"touch begun; (setsid sh -c 'sleep 60; : {word}' &); sleep 60; : {word}"
    run = begin([calls(call("shell", command=tree)), says("never")], ["shell"], project=project)
    wait_for((settings.WORKSPACE_ROOT / project.slug / str(run.id) / "begun").exists, 30)
    api = api_for(project)
    assert api.get(f"/runs/{run.id}").data["state"] == "running"  # and whatever a first request costs is over
    time.sleep(after_seconds)
    assert processes_with(word) != []
    asked = time.monotonic()
    assert api.post(f"/runs/{run.id}/cancel", {"reason": "enough"}).status_code == 202
    wait_for(lambda: processes_with(word) == [])
    seconds = time.monotonic() - asked
    assert seconds < CANCEL_SECONDS_MAX
    assert ended(run).state == "cancelled"
    assert states(run) == [("shell", "uncertain")]
    assert told(run)[-3:] == ["sandbox.destroyed", "tool.failed", "run.cancelled"]

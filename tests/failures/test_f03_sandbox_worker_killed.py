"""F3. The worker is killed while a sandboxed command runs: the command ends with it, and the next worker says so."""

from __future__ import annotations

import pytest
from django.conf import settings

from runs.boundary.sandbox import capabilities
from runs.models import Sandbox, Tool
from tests.kernel import WorkerProcess, begin, call, calls, ended, make_project, rule, says, told, waits
from tests.sandbox_commands import marker, processes_with, wait_for
from tests.waiting import until_sync

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("temporal_server"),
    pytest.mark.timeout(240),
]

FRESH_WORKER_SECONDS_MAX = 90  # on a busy machine a worker takes half a minute to start
TREE_SECONDS_MAX = 2.0


@pytest.fixture
def workers(tmp_path):
    with WorkerProcess(tmp_path) as processes:
        yield processes


def shell(project, script: str, **declared) -> None:
    waived = {} if capabilities().met else {"accept_missing": ["tree_limits"]}
    Tool.objects.create(
        project=project, kind="sandbox", name="shell", remote_name="shell", exposed_name="shell", effect="write",
        input_schema={"type": "object"}, definition_digest="d" * 64, timeout_seconds=100,
        configuration={"argv": ["/bin/sh", "-c", script], **waived}, **declared,
    )  # fmt: skip
    rule(project, "shell", "allow")


def kill_while_it_runs(workers, run, word: str) -> None:
    began = settings.WORKSPACE_ROOT / run.project_id / str(run.id) / "began"
    until_sync(began.exists, 90)
    workers.processes[-1].kill()
    assert wait_for(lambda: processes_with(word) == []) < TREE_SECONDS_MAX
    workers.start()


def test_the_call_is_uncertain_and_the_end_of_its_sandbox_is_told(workers) -> None:
    project, word = make_project(), marker()
    shell(project, f"touch began; sleep 90; : {word}")
    workers.start()
    run = begin([calls(call("shell")), says("never")], ["shell"], project=project, on_uncertain="fail")
    kill_while_it_runs(workers, run, word)
    waits(run, "uncertain", seconds=FRESH_WORKER_SECONDS_MAX)
    until_sync(lambda: not Sandbox.objects.exists(), 60)
    assert [kind for kind in told(run) if kind.startswith(("tool", "sandbox"))].count("sandbox.destroyed") == 1


def test_a_replay_safe_one_runs_again_in_a_fresh_sandbox(workers) -> None:
    project, word = make_project(), marker()
    shell(project, f"[ -e began ] && exit 0; touch began; sleep 90; : {word}", replay_safe=True)
    workers.start()
    run = begin([calls(call("shell")), says("done")], ["shell"], project=project)
    kill_while_it_runs(workers, run, word)
    assert ended(run, 90).state == "completed"
    sandboxes = [kind for kind in told(run) if kind.startswith("sandbox")]
    assert sandboxes == ["sandbox.created", "sandbox.destroyed", "sandbox.created", "sandbox.destroyed"]

"""Starting and following a run over the JSON API, on a real database and a real Temporal server."""

from __future__ import annotations

import uuid

import pytest

from outbox.models import Event, Stream
from runs.boundary.threads import in_thread
from runs.models import Operation, Run
from tests.api_client import Api, api_for, is_problem
from tests.kernel import Ledger, call, calls, make_agent, make_project, make_tool, says, worker, writes_to
from tests.waiting import until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("temporal_server")]


@pytest.fixture(autouse=True)
def own_task_queue(settings):
    """Most tests here start runs and no worker: one that does must not find theirs."""
    settings.TEMPORAL_TASK_QUEUE = f"queue-{uuid.uuid4()}"


@pytest.fixture
def project():
    return make_project()


@pytest.fixture
def agent(project):
    return make_agent(project, [says("done")]).agent.name


@pytest.fixture
def api(project) -> Api:
    return api_for(project)


def test_start_answers_202_with_the_run_and_where_to_find_it(api, project, agent):
    answer = api.post("/runs", {"agent": agent, "input": "go"})
    assert answer.status_code == 202
    assert answer["Location"] == f"/api/v1/runs/{answer.data['id']}"
    assert answer.data["agent"] == agent
    assert answer.data["project"] == project.slug
    assert "Idempotency-Replayed" not in answer
    assert uuid.UUID(answer["X-Request-Id"])
    assert api.client.get(answer["Location"], headers=api.headers).status_code == 200


def test_a_repeat_with_the_same_key_gets_the_same_answer_marked_as_replay(api, agent):
    first = api.post("/runs", {"agent": agent, "input": "go"}, Idempotency_Key="k")
    again = api.post("/runs", {"input": "go", "agent": agent}, Idempotency_Key="k")
    assert (again.status_code, again.data, again["Location"]) == (202, first.data, first["Location"])
    assert again["Idempotency-Replayed"] == "true"
    assert Run.objects.count() == 1


def test_a_started_run_is_in_the_list_and_can_be_read(api, agent):
    started = api.post("/runs", {"agent": agent, "input": "go"}).data["id"]
    [item] = api.get("/runs").data["items"]
    assert (item["id"], item["state"], item["agent_version"]) == (started, "running", 1)
    assert item["model"].startswith("scripted:")
    detail = api.get(f"/runs/{started}").data
    assert detail["input_ref"].startswith("artifact://sha256/")
    assert (detail["result"], detail["result_ref"]) == (None, None)
    assert detail["created_at"].endswith("Z")


def test_the_list_comes_in_pages_newest_first(api, agent):
    started = [api.post("/runs", {"agent": agent, "input": f"{n}"}).data["id"] for n in range(5)]
    seen, cursor = [], ""
    for _ in range(3):
        page = api.get("/runs", limit=2, cursor=cursor).data
        seen += [item["id"] for item in page["items"]]
        cursor = page["next"]
    assert seen == started[::-1]
    assert cursor is None


def test_the_list_is_filtered(api, project, agent):
    other = make_agent(project, [says("x")]).agent.name
    run = api.post("/runs", {"agent": agent, "input": "a"}).data
    api.post("/runs", {"agent": other, "input": "b"})
    assert [item["id"] for item in api.get("/runs", agent=agent).data["items"]] == [run["id"]]
    assert api.get("/runs", state="failed").data["items"] == []
    assert len(api.get("/runs", state="running").data["items"]) == 2
    at = run["started_at"]
    assert len(api.get("/runs", started_after=at).data["items"]) == 2
    assert api.get("/runs", started_before=at).data["items"] == []


def test_a_start_that_nobody_acknowledged_is_no_run(api, project, agent):
    run = api.post("/runs", {"agent": agent, "input": "go"}).data["id"]
    Run.objects.filter(id=run).update(state="starting", started_at=None)
    assert api.get("/runs").data["items"] == []
    assert is_problem(api.get(f"/runs/{run}"), 404, "not_found")


def test_unknown_agent_changes_nothing(api):
    assert is_problem(api.post("/runs", {"agent": "nobody", "input": "go"}), 404, "unknown_agent")
    assert not Run.objects.exists()


def test_temporal_down_is_503_and_there_is_no_run(api, agent, temporal_server):
    with temporal_server.stopped():
        refused = api.post("/runs", {"agent": agent, "input": "go"})
    assert refused.status_code == 503
    assert refused["Retry-After"].isdigit()
    assert not Event.objects.exists()
    assert api.get("/runs").data["items"] == []


def test_cancel_is_accepted_once_and_repeats_change_nothing(api, agent):
    run = api.post("/runs", {"agent": agent, "input": "go"}).data["id"]
    answer = api.post(f"/runs/{run}/cancel", {"reason": "a mistake"})
    assert (answer.status_code, answer.data["state"]) == (202, "cancelling")
    again = api.post(f"/runs/{run}/cancel")
    assert (again.status_code, again.data["cancel_reason"]) == (202, "a mistake")
    Run.objects.filter(id=run).update(state="completed", ended_at="2030-01-01T00:00:00Z", cancel_requested_at=None)
    assert is_problem(api.post(f"/runs/{run}/cancel"), 409, "conflict")


def test_events_come_by_sequence_and_say_what_is_delivered(api, agent):
    run = api.post("/runs", {"agent": agent, "input": "go"}).data["id"]
    api.post(f"/runs/{run}/cancel")
    page = api.get(f"/runs/{run}/events").data
    assert [(item["sequence"], item["type"], item["delivered"]) for item in page["items"]] == [
        (1, "run.started", False)
    ]
    assert page["items"][0]["envelope"]["context"]["run"] == run
    Stream.objects.filter(run_id=run).update(published=1, ready_at=None)
    [event] = api.get(f"/runs/{run}/events").data["items"]
    assert event["delivered"]
    assert api.get(f"/runs/{run}/events", after=1).data["items"] == []


def test_a_gap_in_the_journal_is_named(api, agent):
    run = api.post("/runs", {"agent": agent, "input": "go"}).data["id"]
    page = api.get(f"/runs/{run}/events", after=0).data
    assert page["gaps"] == []
    from runs.api.answers import gaps

    assert gaps([0, 1, 2, 5, 9]) == [(3, 4), (6, 8)]


async def test_a_whole_run_is_followed_to_its_result(tmp_path, project):
    ledger = Ledger(tmp_path / "ledger")
    await in_thread(make_tool, project, "note", writes_to(ledger), effect="write", idempotent_for_seconds=3600)
    turns = [calls(call("note", text="hello")), says("all done")]
    version = await in_thread(make_agent, project, turns, ["note"])
    api = await in_thread(api_for, project)
    async with worker():
        run = (await in_thread(api.post, "/runs", {"agent": version.agent.name, "input": "go"})).data["id"]
        await until(lambda: in_thread(lambda: api.get(f"/runs/{run}").data["state"] == "completed"))
    detail = (await in_thread(api.get, f"/runs/{run}")).data
    assert (detail["result"], detail["result_cut"]) == ("all done", False)
    operations = (await in_thread(api.get, f"/runs/{run}/operations", limit=2)).data
    assert [item["state"] for item in operations["items"]] == ["succeeded", "succeeded"]
    rest = (await in_thread(api.get, f"/runs/{run}/operations", cursor=operations["next"])).data
    assert [(item["turn"], item["position"]) for item in rest["items"]] == [(2, 0)]
    tool_call = operations["items"][1]
    assert "arguments" not in tool_call
    whole = (await in_thread(api.get, f"/operations/{tool_call['id']}")).data
    assert whole["arguments"] == {"text": "hello"}
    assert whole["result"]["text"] == "wrote hello"
    assert (await in_thread(Operation.objects.count)) == 3

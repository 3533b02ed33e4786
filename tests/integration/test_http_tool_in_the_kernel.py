"""HTTP tools from the project file to the outcome: each crossing of the boundary, with a real server outside."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from django.core.management import CommandError, call_command

from runs.boundary.intents import Wanted
from runs.models import Operation, Project, Tool
from tests.boundary_scene import (
    allow_all,
    committed,
    make_project,
    make_run,
    perform_now,
    propose,
    put_back,
    result_of,
    told,
)
from tests.fakes.http_api import Api, Handler, http_api, usual

pytestmark = pytest.mark.usefixtures("committed")
__all__ = ["committed"]

SCHEMA = {"type": "object", "properties": {"order": {"type": "string"}}, "required": ["order"]}


@pytest.fixture
def api() -> Iterator[Api]:
    with http_api() as served:
        yield served


def declared(api: Api, **more: Any) -> dict[str, Any]:
    request = {"method": "POST", "url": api.url("/refunds"), "body": {"order": "{argument:order}"}}
    request |= {"private_hosts": ["127.0.0.1"]} | more.pop("request", {})
    given = {"kind": "http", "name": "refund", "description": "Refund an order.", "input_schema": SCHEMA}
    return given | {"timeout_seconds": 2, "request": request} | more


def load(folder: Any, *tools: dict[str, Any], project: str = "") -> Project:
    slug = project or make_project().slug
    file = folder / "project.yaml"
    file.write_text(yaml.safe_dump({"project": slug, "tools": list(tools)}))
    call_command("load_agents", str(file), verbosity=0)
    allow_all(Project.objects.get(slug=slug))
    return Project.objects.get(slug=slug)


def asked(project: Project, order: str = "7", tool: str = "refund") -> Operation:
    return propose(make_run(project, [tool]), Wanted(tool, {"order": order}))[0]


def row(operation: Operation) -> Operation:
    return Operation.objects.get(id=operation.id)


def test_a_declared_tool_is_called_and_its_answer_kept(api, tmp_path):
    operation = asked(load(tmp_path, declared(api)))
    assert perform_now(operation.id).state == "succeeded"
    assert api.effects == [str(operation.id)]
    assert '"id": 1' in result_of(row(operation))["text"]
    assert (operation.kind, told(operation.id)) == ("http", ["tool.started", "tool.completed"])


def test_the_mark_is_in_the_row_before_the_server_sees_a_byte(api, tmp_path):
    marked: list[bool] = []

    def plan(handler: Handler) -> None:
        from django.db import connection

        marked.append(Operation.objects.get().sending_at is not None)
        connection.close()
        usual(handler)

    Operation.objects.all().delete()
    operation = asked(load(tmp_path, declared(api)))
    api.plan = plan
    perform_now(operation.id)
    assert marked == [True]


def test_a_tool_that_keeps_keys_needs_no_mark_and_is_called_again_with_the_same_key(api, tmp_path, monkeypatch):
    monkeypatch.setattr("runs.boundary.perform.AGAIN_PAUSES_SECONDS", (0.0,))
    api.keyed, plans = True, [Handler.break_off]

    def plan(handler: Handler) -> None:
        handler.act()
        plans.pop()(handler) if plans else handler.answer(201, {"id": 1})

    api.plan = plan
    operation = asked(load(tmp_path, declared(api, idempotent_for_seconds=3600)))
    assert perform_now(operation.id).state == "succeeded"
    assert (api.effects, len(api.seen), row(operation).sending_at) == ([str(operation.id)], 2, None)


def hangs(handler: Handler) -> None:
    if handler.command == "GET":
        usual(handler)
    else:
        handler.act()
        handler.hold()


def test_a_write_without_an_answer_is_uncertain_and_its_twin_refused(api, tmp_path):
    project = load(tmp_path, declared(api, timeout_seconds=1))
    api.plan = hangs
    operation, twin = asked(project), asked(project)
    assert perform_now(operation.id).state == "uncertain"
    assert row(operation).error_class == "CallTimedOut"
    assert perform_now(twin.id).state == "blocked"
    assert len(api.effects) == 1


def test_a_look_up_settles_it(api, tmp_path):
    probe = {"url": api.url("/refunds?reference={operation_id}"), "found_when": {"contains": '"{operation_id}"'}}
    api.plan = hangs
    operation = asked(load(tmp_path, declared(api, timeout_seconds=1, probe=probe)))
    assert perform_now(operation.id).state == "succeeded"
    assert "Found by looking it up" in result_of(row(operation))["text"]
    assert len(api.effects) == 1


def test_a_look_up_that_does_not_find_it_lets_it_go_again_after_its_time(api, tmp_path):
    from runs.boundary import reconcile

    probe = {"url": api.url("/refunds"), "found_when": {"contains": '"{operation_id}"'}}
    configuration = {"absent_after_seconds": 0}
    tool = declared(api, timeout_seconds=1, probe=probe, configuration=configuration)
    operation = asked(load(tmp_path, tool))
    api.plan = lambda handler: usual(handler) if handler.command == "GET" else handler.break_off()
    assert perform_now(operation.id).state == "uncertain"
    put_back(operation.id, 100)
    assert reconcile.probe_now(operation.id) == "reconciled"
    assert row(operation).verdict == "none"
    api.plan = None
    assert perform_now(operation.id).state == "succeeded"
    assert api.effects == [str(operation.id)]


@pytest.mark.parametrize(("status", "state"), [(422, "failed"), (503, "uncertain"), (409, "uncertain")])
def test_what_a_status_makes_of_a_write(api, tmp_path, status, state):
    api.plan = lambda handler: handler.answer(status, {"error": "no"})
    operation = asked(load(tmp_path, declared(api)))
    assert perform_now(operation.id).state == state
    assert f"HTTP status {status}" in row(operation).error_message


def test_a_read_that_fails_is_asked_again_and_ends(api, tmp_path, monkeypatch):
    monkeypatch.setattr("runs.boundary.perform.AGAIN_PAUSES_SECONDS", (0.0,))
    api.plan = lambda handler: handler.answer(503, {"error": "later"})
    tool = declared(api, effect="read") | {
        "request": {"method": "GET", "url": api.url(), "private_hosts": ["127.0.0.1"]}
    }
    operation = asked(load(tmp_path, tool))
    assert perform_now(operation.id).state == "failed"
    assert len(api.seen) == 4


def test_a_target_that_is_not_allowed_fails_without_an_effect(api, tmp_path):
    operation = asked(load(tmp_path, declared(api, request={"private_hosts": []})))
    assert perform_now(operation.id).state == "failed"
    assert (row(operation).error_class, api.seen) == ("TargetForbidden", [])
    assert row(operation).sending_at is None


@pytest.mark.parametrize(
    "body", [b'{"score": NaN}', b'{"scores": [Infinity, 1e400, -1e400]}', b'{"id": 1, "text": "\\u0000"}']
)
def test_numbers_that_json_does_not_have_are_kept_marked_and_nothing_is_repeated(api, tmp_path, body):
    """C70, for this kind of tool."""

    def plan(handler: Handler) -> None:
        handler.act()
        handler.answer(201, body)

    api.plan = plan
    operation = asked(load(tmp_path, declared(api)))
    assert [perform_now(operation.id).state for _ in range(2)] == ["succeeded"] * 2
    assert (len(api.effects), result_of(row(operation))["is_error"]) == (1, False)


def test_a_secret_stands_in_no_row(api, tmp_path, monkeypatch):
    monkeypatch.setenv("PAY_TOKEN", "Bearer canary-of-the-test")
    headers = {"Authorization": {"from_env": "PAY_TOKEN"}}
    project = load(tmp_path, declared(api, request={"headers": headers}))
    api.plan = lambda handler: handler.answer(201, {"you sent": handler.request_seen.headers["authorization"]})
    operation = asked(project)
    perform_now(operation.id)
    assert api.seen[0].headers["authorization"] == "Bearer canary-of-the-test"
    assert "canary" not in str(Tool.objects.filter(project=project).values())
    assert "canary" not in str(result_of(row(operation)))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"request": {"url": "https://{argument:host}/"}}, r"tools\.0\.http\.request"),
        ({"request": {"headers": {"Authorization": "Bearer x"}}}, "from_env"),
        ({"probe": {"url": "https://a.example/"}}, "found_when"),
        ({"input_schema": {"type": "nonsense"}}, "not valid JSON Schema"),
        ({"requests": {}}, "requests"),
    ],
)
def test_a_mistake_in_the_file_is_named(api, tmp_path, change, says):
    with pytest.raises(CommandError, match=says):
        load(tmp_path, declared(api, **change))


def test_another_target_is_another_call_for_whoever_approved_it(api, tmp_path):
    project = load(tmp_path, declared(api))
    before = Tool.objects.get(project=project).definition_digest
    load(tmp_path, declared(api, request={"url": api.url("/other")}), project=project.slug)
    assert Tool.objects.get(project=project).definition_digest != before

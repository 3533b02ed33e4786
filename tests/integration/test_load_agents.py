"""`manage.py load_agents`: all of a file or nothing, and every mistake a sentence that says where."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from approvals.models import Policy
from runs.models import AgentVersion, Project, Tool

pytestmark = pytest.mark.django_db

GOOD = """
project: shop
tools:
  - kind: sandbox
    name: list
    effect: read
    input_schema: {type: object}
    configuration: {argv: [ls]}
policies:
  - {name: careful, answer: require, tool: "*", group: approvers}
agents:
  - {name: clerk, model: "openai:gpt-5", tools: [list]}
"""


def load(folder: Path, text: str | bytes) -> None:
    file = folder / "project.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    call_command("load_agents", str(file))


def test_a_file_becomes_a_project_with_tools_policies_and_agents(tmp_path):
    load(tmp_path, GOOD)
    assert Tool.objects.get().name == "list"
    assert Policy.objects.get().answer == "require"
    assert AgentVersion.objects.get().definition["tools"] == ["list"]


def test_loading_it_again_changes_nothing(tmp_path):
    load(tmp_path, GOOD)
    load(tmp_path, GOOD)
    assert AgentVersion.objects.count() == 1
    assert Policy.objects.count() == 1


def test_a_change_is_a_new_version_and_the_old_one_stays(tmp_path):
    load(tmp_path, GOOD)
    load(tmp_path, GOOD.replace("gpt-5", "gpt-6"))
    assert sorted(AgentVersion.objects.values_list("version", flat=True)) == [1, 2]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (GOOD.replace("name: clerk", "nmae: clerk"), "agents.0.nmae"),
        (GOOD.replace("answer: require", "answer: perhaps"), "policies.0.answer"),
        (GOOD.replace("openai:gpt-5", "gpt-5"), "agents.0.model"),
        (GOOD.replace("openai:gpt-5", "nobody:gpt-5"), "nobody:gpt-5"),
        (GOOD.replace("tools: [list]", "tools: [lost]"), "lost"),
        (GOOD.replace("kind: sandbox", "kind: magic"), "magic"),
        ("project: [", "not valid YAML"),
        (b"project: \xff\xfe", "not valid YAML"),
        (GOOD.replace("argv: [ls]}", "argv: [ls]}\n    compensation: {tool: lost}"), "does not have: 'lost'"),
        (GOOD.replace("argv: [ls]}", "argv: [ls]}\n    compensation: {tol: list}"), "compensation"),
        (GOOD + "mcp_servers:\n  - {name: x, transport: stdio, command: /no/such/program}\n", "cannot be asked"),
        ("project: shop\ntools:\n  - {kind: python, module: no_such_module, function: f}\n", "no_such_module"),
        ("project: shop\ntools:\n  - {kind: python, module: json, function: f}\n", "registers no tool 'f'"),
    ],
)
def test_a_mistake_is_named_and_nothing_is_changed(tmp_path, text, says):
    with pytest.raises(CommandError, match=says):
        load(tmp_path, text)
    assert not Project.objects.exists()
    assert not Tool.objects.exists()


def test_a_tool_says_how_it_is_undone(tmp_path):
    compensation = "compensation: {tool: list, arguments: {a: '{argument:b}'}}"
    load(tmp_path, GOOD.replace("argv: [ls]}", "argv: [ls]}\n    " + compensation))
    assert Tool.objects.get().compensation == {"tool": "list", "arguments": {"a": "{argument:b}"}}


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(CommandError, match=r"missing\.yaml"):
        call_command("load_agents", str(tmp_path / "missing.yaml"))

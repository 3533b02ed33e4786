"""A draft policy is tried on past calls before it is put in force: by command and in the console."""

from __future__ import annotations

import io
import json

import pytest
from django.core.management import CommandError, call_command
from django.urls import reverse

from approvals import trials
from approvals.contracts import Rule
from approvals.models import Policy
from runs.models import Operation
from tests import console
from tests.boundary_scene import committed, make_scene, rule

pytestmark = pytest.mark.usefixtures("committed")
__all__ = ["committed"]


@pytest.fixture
def past():
    """Three calls of one tool that were allowed, with the amounts 5, 50 and 500."""
    scene = make_scene("read")
    for amount in (5, 50, 500):
        scene.another(scene.run, amount=amount)
    return scene


def draft(scene, **more) -> Rule:
    large = {"path": "$.amount", "range": {"min": 50}}
    return Rule(**{"name": "large", "answer": "require", "tool": scene.tool.name, "arguments": (large,), **more})


def tried(scene, text, *words) -> str:
    out = io.StringIO()
    call_command("policy", "try", str(text), "--project", scene.project.slug, *words, stdout=out)
    return out.getvalue()


def test_it_says_which_past_calls_would_have_been_judged_otherwise(past):
    before = list(Operation.objects.order_by("id").values("id", "policy", "state")), Policy.objects.count()
    trial = trials.try_rule(past.project.slug, draft(past))
    assert (trial.looked_at, trial.decided, trial.changed_total) == (4, 2, 2)
    assert trial.moves == {("allow", "allow"): 2, ("allow", "require"): 2}
    assert {(one.was, one.would, one.tool) for one in trial.changed} == {("allow", "require", past.tool.name)}
    assert (list(Operation.objects.order_by("id").values("id", "policy", "state")), Policy.objects.count()) == before


def test_the_draft_takes_the_place_of_the_rule_of_its_name_and_the_others_stay(past):
    rule(past.project, "deny", name="large", tool=past.tool.name)
    rule(past.project, "require", name="tiny", tool=past.tool.name, arguments=({"path": "$.amount", "equals": 5},))
    trial = trials.try_rule(past.project.slug, draft(past))
    assert trial.moves == {("allow", "allow"): 1, ("allow", "require"): 3}


def test_a_trial_looks_at_the_newest_calls_only_as_far_as_it_is_told(past):
    assert trials.try_rule(past.project.slug, draft(past), limit=2).moves == {("allow", "require"): 2}


def test_the_command_tells_it_as_text_and_as_json(past, tmp_path):
    path = tmp_path / "draft.yaml"
    path.write_text(
        f"name: large\nanswer: deny\ntool: {past.tool.name}\narguments:\n- path: $.amount\n  range: {{min: 50}}\n"
    )
    assert "the draft decides 2, 2 otherwise" in tried(past, path)
    told = json.loads(tried(past, path, "--json"))
    assert (told["looked_at"], told["decided_by_draft"], told["changed"]) == (4, 2, 2)
    assert {"was": "allow", "would": "deny", "calls": 2} in told["moves"]
    path.write_text("project: p\npolicies:\n- {name: a, answer: deny}\n- {name: b, answer: allow}\n")
    assert "otherwise" in tried(past, path, "--name", "a")


@pytest.mark.parametrize(
    "text",
    [
        "[", "name: x", "{name: x, answer: maybe}", "{name: x, answer: deny, quorum: 0}",
        "{name: x, answer: deny, foo: 1}", "{name: x, answer: require, on_expiry: escalate}",
        "{name: x, answer: require, arguments: [{path: $.a, pattern: '('}]}",
        "- {name: x, answer: deny}\n- {name: y, answer: deny}",
    ],
)  # fmt: skip
def test_a_draft_that_could_not_be_put_in_force_is_refused_with_a_sentence(past, tmp_path, text):
    path = tmp_path / "draft.yaml"
    path.write_text(text)
    with pytest.raises(CommandError) as refused:
        tried(past, path)
    assert len(str(refused.value)) > 10


def test_the_console_shows_what_a_draft_would_have_decided_and_puts_nothing_in_force(past):
    root = console.logged_in(console.person("root-trials", superuser=True))
    form = {
        "project": past.project.slug, "name": "large", "agent": "*", "tool": past.tool.name, "answer": "deny",
        "deadline_seconds": 60, "on_expiry": "reject", "arguments": '[{"path": "$.amount", "range": {"min": 50}}]',
    }  # fmt: skip
    html = root.post(reverse("admin:approvals_policy_try"), form).content.decode()
    assert "the draft decides 2, 2 otherwise" in html
    assert html.count(reverse("admin:runs_operation_changelist")) >= 2
    assert not Policy.objects.filter(project=past.project.slug, name="large").exists()
    wrong = root.post(reverse("admin:approvals_policy_try"), form | {"arguments": '[{"path": "$.a"}]'}).content.decode()
    assert "must have exactly one of" in wrong

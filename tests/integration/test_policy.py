"""Which rule decides: the narrower one, then the later one, and between incomparable ones the more careful."""

from __future__ import annotations

import pytest

from approvals import policy
from approvals.contracts import Call, Rule
from approvals.models import Policy
from kernel_project.primitives.errors import Invalid
from tests.boundary_scene import committed, make_project

pytestmark = pytest.mark.usefixtures("committed")
__all__ = ["committed"]


def decided(rules: list[dict], effect="write", has_key=False, has_probe=False, tool="git/commit") -> str:
    slug = make_project().slug
    for number, rule in enumerate(rules):
        policy.save(slug, Rule(name=f"rule {number}", **rule), "test")
    call = Call(project=slug, agent="writer", tool=tool, effect=effect, has_key=has_key, has_probe=has_probe)
    return policy.decide(call).answer


@pytest.mark.parametrize(
    ("effect", "has_key", "has_probe", "answer"),
    [
        ("read", False, False, "allow"),
        ("write", True, False, "allow"),
        ("write", False, True, "allow"),
        ("write", False, False, "require"),
    ],
)
def test_without_rules_a_write_that_cannot_be_told_apart_needs_a_person(effect, has_key, has_probe, answer):
    assert decided([], effect, has_key, has_probe) == answer


@pytest.mark.parametrize(
    ("rules", "answer"),
    [
        ([{"answer": "deny"}, {"answer": "allow"}], "allow"),  # the later of equals
        ([{"answer": "allow"}, {"answer": "deny"}], "deny"),
        ([{"answer": "deny", "tool": "git/commit"}, {"answer": "allow"}], "deny"),  # the narrower, though earlier
        ([{"answer": "allow", "tool": "git/commit"}, {"answer": "deny"}], "allow"),
        ([{"answer": "allow", "tool": "git/*"}, {"answer": "deny", "tool": "git/c*"}], "deny"),
        ([{"answer": "deny", "tool": "git/c*"}, {"answer": "allow", "tool": "git/*"}], "deny"),
        (
            [{"answer": "allow", "tool": "git/commit", "effect": "write"}, {"answer": "deny", "tool": "git/commit"}],
            "allow",
        ),
        # incomparable: one names the tool, the other the agent
        ([{"answer": "deny", "agent": "writer"}, {"answer": "allow", "tool": "git/commit"}], "deny"),
        ([{"answer": "allow", "agent": "writer"}, {"answer": "require", "tool": "git/commit"}], "require"),
        ([{"answer": "allow", "agent": "writer"}, {"answer": "deny", "tool": "git/commit"}], "deny"),
        # both named: narrower than either
        (
            [
                {"answer": "deny", "agent": "writer"},
                {"answer": "deny", "tool": "git/commit"},
                {"answer": "allow", "agent": "writer", "tool": "git/commit"},
            ],
            "allow",
        ),
        ([{"answer": "deny", "tool": "other"}, {"answer": "deny", "effect": "read"}], "require"),  # neither matches
    ],
)
def test_which_rule_decides(rules, answer):
    assert decided(rules) == answer


def test_a_name_that_looks_like_a_pattern_means_itself_too():
    assert decided([{"answer": "deny", "tool": "odd[1]"}], tool="odd[1]") == "deny"


def test_a_rule_that_was_replaced_decides_no_more():
    slug = make_project().slug
    policy.save(slug, Rule(name="one", answer="deny"), "test")
    second, made = policy.save(slug, Rule(name="one", answer="allow"), "test")
    assert (second.version, made) == (2, True)
    assert policy.save(slug, Rule(name="one", answer="allow"), "test")[1] is False
    call = Call(project=slug, agent="a", tool="t", effect="write", has_key=False, has_probe=False)
    answer = policy.decide(call)
    assert (answer.answer, answer.policy, answer.policy_id) == ("allow", "one v2", second.id)


def test_more_rules_than_can_be_looked_at_are_refused_and_deny(monkeypatch):
    monkeypatch.setattr(policy, "POLICIES_MAX", 2)
    slug = make_project().slug
    for name in "ab":
        policy.save(slug, Rule(name=name, answer="allow"), "test")
    with pytest.raises(Invalid):
        policy.save(slug, Rule(name="c", answer="allow"), "test")
    Policy.objects.create(project=slug, name="c", version=1, answer="allow", created_by="somebody else")
    call = Call(project=slug, agent="a", tool="t", effect="read", has_key=False, has_probe=False)
    assert policy.decide(call).answer == "deny"

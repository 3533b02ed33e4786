"""The names under which tools are shown to models."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runs.boundary.tool_names import exposed_name, exposed_names

FIT = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}\Z")
parts = st.one_of(st.text(max_size=130), st.text(alphabet="ab_-h0.", max_size=20))
identities = st.lists(st.tuples(parts, parts), max_size=30)


@given(identities)
def test_every_name_fits_and_no_two_are_equal(pairs: list[tuple[str, str]]) -> None:
    names = exposed_names(pairs)
    assert set(names) == set(pairs)
    assert len(set(names.values())) == len(names)
    assert all(FIT.match(name) for name in names.values())


@given(identities, st.randoms())
def test_neither_order_nor_other_tools_change_a_name(pairs: list[tuple[str, str]], random: object) -> None:
    names = exposed_names(pairs)
    random.shuffle(pairs)  # type: ignore[attr-defined]
    assert exposed_names(pairs) == names
    assert all(exposed_names([pair])[pair] == name for pair, name in names.items())


@pytest.mark.parametrize(
    ("server", "tool", "name"),
    [
        ("git", "git_commit", "git__git_commit"),
        ("", "read_file", "read_file"),
        ("a", "b__c", "a__b__c"),
        ("a__b", "c", "a_b_c-h92c52c85f29b"),
        ("internal search (eu)", "a.b", "internal_search_eu_a_b-h87502c6df18e"),
        ("internal search (eu)", "a_b", "internal_search_eu_a_b-h306239d316fe"),
        ("9", "x", "tool_9_x-h7d39ff389b6f"),
    ],
)
def test_names_stay_the_same_for_ever(server: str, tool: str, name: str) -> None:
    assert exposed_name(server, tool) == name


def test_a_tool_cannot_take_the_hashed_name_of_another() -> None:
    victim = exposed_name("s", "a.b")
    assert exposed_name("", victim) != victim


def test_the_names_are_the_same_in_another_process() -> None:
    code = "from runs.boundary.tool_names import exposed_name; print(exposed_name('Ü', 'a b'))"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert printed.stdout.strip() == exposed_name("Ü", "a b")

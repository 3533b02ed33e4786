"""docs/settings.md names every variable that the code reads, with its default, and no other."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest

from kernel_project.devstack.layout import PORT_NAMES, PROJECT_ROOT, Layout
from kernel_project.environment import REQUIRED_IN_PRODUCTION, Environment
from kernel_project.settings_temporality import Environment as EventStoreEnvironment

ROW = re.compile(r"\| `([A-Z_]+)` \| (.*?) \| (.*) \|")


@pytest.fixture(scope="module")
def documented() -> dict[str, tuple[str, str]]:
    """Default and meaning by variable."""
    lines = (PROJECT_ROOT / "docs" / "settings.md").read_text().splitlines()
    rows = [match.groups() for line in lines if (match := ROW.match(line))]
    assert len(rows) == len({name for name, _, _ in rows}), "a variable stands there twice"
    return {name: (default, meaning) for name, default, meaning in rows}


def read_by_code() -> dict[str, object]:
    defaults = {
        name.upper(): field.default
        for model in (Environment, EventStoreEnvironment)
        for name, field in model.model_fields.items()
    }
    ports = {f"KERNEL_{field.name.upper()}": field.default for field in fields(Layout) if field.name != "var"}
    assert len(ports) == len(PORT_NAMES)
    return defaults | ports | {"KERNEL_VAR": ""}


def test_every_variable_is_documented_and_no_other(documented: dict[str, tuple[str, str]]) -> None:
    assert documented.keys() == read_by_code().keys()


def test_fixed_defaults_are_told_as_they_are(documented: dict[str, tuple[str, str]]) -> None:
    for name, default in read_by_code().items():
        if default != "":
            assert documented[name][0] == f"`{str(default).lower() if isinstance(default, bool) else default}`", name


def test_what_production_requires_is_marked(documented: dict[str, tuple[str, str]]) -> None:
    marked = {name for name, (_, meaning) in documented.items() if meaning.startswith("**required.**")}
    assert marked == {name.upper() for name in REQUIRED_IN_PRODUCTION}

"""The house stands as it is drawn: imports go downwards, names say what things are, no machine leaks in."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
APPS = ("kernel_project", "runs", "approvals", "outbox", "temporality")
TOP_LEVEL = {
    "manage.py", "pyproject.toml", "docker-compose.yml", "kernel_project", "runs", "outbox", "approvals", "temporality",
    "templates", "tests", "docs", "README.md", "CHANGELOG.md", "Makefile", "Dockerfile", ".ci", ".gitignore",
    ".dockerignore",
}  # fmt: skip
FORBIDDEN_NAMES = {"utils", "common", "manager", "helper", "helpers", "misc"}


def tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / line for line in listed.stdout.splitlines() if (ROOT / line).exists()]


def modules() -> list[Path]:
    return [path for path in tracked() if path.suffix == ".py" and path.relative_to(ROOT).parts[0] in APPS]


def test_imports_go_downwards_only():
    linter = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([linter], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]


def test_migrations_are_named_for_what_they_do():
    names = [path.name for path in modules() if path.parent.name == "migrations" and path.name != "__init__.py"]
    assert names
    assert [name for name in names if "_auto_" in name or not re.fullmatch(r"\d{4}_[a-z]+(_[a-z]+)*\.py", name)] == []


def test_every_module_says_what_it_is_for():
    silent = [
        str(path.relative_to(ROOT))
        for path in modules()
        if path.stat().st_size
        and path.parent.name != "migrations"
        and path.name not in {"apps.py", "__init__.py"}
        and not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert silent == []


def test_no_module_is_a_drawer_for_odds_and_ends():
    assert [str(path) for path in modules() if set(path.stem.split("_")) & FORBIDDEN_NAMES] == []


def test_the_top_level_holds_only_what_was_agreed():
    found = {path.relative_to(ROOT).parts[0] for path in tracked()}
    assert {name for name in found - TOP_LEVEL if not re.fullmatch(r"requirements[a-z-]*\.txt", name)} == set()


@pytest.mark.parametrize(
    "pattern",
    [r"/home/\w+/", r"/work/(main|shared|\.library)", r"/root/", r"--index-url|--extra-index-url|--find-links"],
)
def test_no_path_of_a_machine_and_no_registry_stands_in_the_project(pattern):
    texts = [path for path in tracked() if path.suffix in {".py", ".md", ".txt", ".toml", ".yml", ".yaml", ".sql", ""}]
    own = Path(__file__)
    found = [str(path.relative_to(ROOT)) for path in texts if path != own and re.search(pattern, path.read_text())]
    assert found == []


def test_every_requirement_is_pinned_with_its_hash():
    for path in ROOT.glob("requirements*.txt"):
        pins = re.split(r"\n(?=[A-Za-z0-9])", path.read_text().strip())
        assert [pin[:60] for pin in pins if "==" not in pin or "--hash=sha256:" not in pin] == [], path

"""The folder in which a run's tools work. One folder per run, or a named one that was prepared for it."""

from __future__ import annotations

import re
from pathlib import Path

from django.conf import settings

from kernel_project.primitives.errors import Invalid
from runs.models import Run

NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,99}", re.ASCII)  # no dots, no separators: a name can never lead elsewhere


def path(run: Run) -> Path:
    """Where the run's workspace is, whether it exists or not."""
    root: Path = settings.WORKSPACE_ROOT
    return root / run.project_id / (run.workspace or str(run.id))


def ensure(run: Run) -> None:
    """Make the run's own folder; a named one must have been prepared."""
    if not run.workspace:
        path(run).mkdir(parents=True, exist_ok=True)


def check_name(name: str, project: str) -> None:
    """Raise Invalid for a workspace name that cannot be, or that nobody has prepared for this project."""
    if not NAME.fullmatch(name):
        raise Invalid("a workspace name has lower-case letters, digits and hyphens only, at most 100 of them")
    folder: Path = settings.WORKSPACE_ROOT / project / name
    if folder.is_symlink() or not folder.is_dir():
        raise Invalid(f"there is no workspace {name!r} in project {project!r}: prepare the folder first")

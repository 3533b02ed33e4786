"""Read the SQL that stands in `<app>/sql/*.sql`. Knows no database."""

from __future__ import annotations

from functools import cache
from pathlib import Path


@cache
def load(folder: Path, name: str) -> str:
    """The text of `<folder>/sql/<name>.sql`; `folder` is the app's own, as in `load(HERE, "append")`."""
    return (folder / "sql" / f"{name}.sql").read_text()

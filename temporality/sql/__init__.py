"""The event store's SQL statements, one file each. The first lines of each say what it is for."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import LiteralString


@cache
def statement(name: str) -> LiteralString:
    """The text of `<name>.sql`."""
    text: LiteralString = Path(__file__).with_name(f"{name}.sql").read_text()
    return text

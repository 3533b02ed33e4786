"""Run the SQL that stands in `<app>/sql/*.sql`. Knows no table."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from django.db import connection
from psycopg import Cursor
from psycopg.pq import ExecStatus
from psycopg.sql import SQL, Composable


@cache
def load(folder: Path, name: str) -> str:
    """The text of `<folder>/sql/<name>.sql`; `folder` is the app's own, as in `load(HERE, "claim")`."""
    return (folder / "sql" / f"{name}.sql").read_text()


def rows(folder: Path, name: str, values: Mapping[str, Any], **parts: Composable) -> list[tuple[Any, ...]]:
    """The rows of a statement that is run again and again: the database plans it once per connection.

    The values travel beside the text (Django's own cursors write them into it), so each must have a type that shows
    from where it stands; a cast says it where it does not. `parts` are names that stand in the text in braces, such as
    a list of columns. DATABASE_PREPARED_STATEMENTS=false plans the statement each time.
    """
    connection.ensure_connection()
    raw: Any = Cursor(connection.connection)
    is_watched = connection.queries_logged or connection.execute_wrappers
    # Django's own wrapper of a cursor costs as much as a small statement: only who watches pays for it
    with connection.wrap_database_errors, connection.make_debug_cursor(raw) if is_watched else raw as cursor:
        text = load(folder, name)
        cursor.execute(SQL(text).format(**parts) if parts else text, values)
        has_rows = raw.pgresult is not None and raw.pgresult.status == ExecStatus.TUPLES_OK
        found: list[tuple[Any, ...]] = cursor.fetchall() if has_rows else []
    return found

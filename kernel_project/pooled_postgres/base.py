"""The database backend of `DATABASES`: what it adds is how a lost connection of the pool is noticed and replaced.

psycopg's own check of a borrowed connection pauses longer with every dead one that it meets (0, 1, 2, 4 seconds):
after a restart of PostgreSQL a pool with five idle connections would give nobody one within its timeout.
"""

from __future__ import annotations

from typing import Any

import psycopg
from django.db.backends.postgresql import base
from psycopg_pool import ConnectionPool

DEAD_CONNECTIONS_MAX = 3  # that one borrower meets: after the first the whole pool is checked


class DatabaseWrapper(base.DatabaseWrapper):
    """Gives checked connections. Raises OperationalError when the database does not answer in time."""

    pool: ConnectionPool | None  # of Django's class, where its stubs do not name it

    def get_new_connection(self, conn_params: dict[str, Any]) -> psycopg.Connection[Any]:
        """A connection that answers; the first dead one has all idle ones looked at, and the dead replaced, at once."""
        for _ in range(DEAD_CONNECTIONS_MAX):
            connection: psycopg.Connection[Any] = super().get_new_connection(conn_params)
            if self.pool is None:
                return connection
            try:
                ConnectionPool.check_connection(connection)
            except psycopg.OperationalError as error:
                lost = error
                self.pool.putconn(connection)
                self.pool.check()
            else:
                return connection
        raise lost

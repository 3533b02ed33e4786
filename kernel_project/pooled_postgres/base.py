"""The database backend of `DATABASES`: what it adds is how a lost connection of the pool is noticed and replaced.

psycopg's own check asks the server each time a connection is borrowed, and pauses longer with every dead one that it
meets (0, 1, 2, 4 seconds): after a restart of PostgreSQL a pool with five idle connections would give nobody one within
its timeout. A server that ends a connection says so on its socket, so looking there is enough, and costs no round trip.
"""

from __future__ import annotations

import select
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
            if self.pool is None or _is_quiet(connection):
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


def _is_quiet(connection: psycopg.Connection[Any]) -> bool:
    """Whether the server has sent nothing unasked: no end of the connection, and no word before it."""
    if connection.closed:
        return False
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return not poll.poll(0)

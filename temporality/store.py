"""The event store's connections. The process keeps serving while the database is away, and says so."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import psycopg.conninfo
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from kernel_project.primitives.errors import Unavailable

CONNECTION_WAIT_SECONDS = 3.0  # for a connection from the pool
RECONNECT_SECONDS = 5.0  # a pool that gives up earlier starts again with the next request
CONNECT_SECONDS = 3  # for the database to accept a connection
READ_SECONDS = 10  # one reading statement
WRITE_SECONDS = 30  # one storing statement, lock wait included
WRITERS = 2  # connections for storing: one at work, one to come back with after a loss
RETRY_AFTER_SECONDS = 2  # what a producer is asked to wait when the database is away

AWAY = "the event store's database does not answer"
Connection = psycopg.AsyncConnection[tuple[Any, ...]]


class Store:
    """Two pools on one database, so that readers can never take the writer's connection."""

    def __init__(self, url: str, connections_max: int) -> None:
        self.writing = _pool(url, 1, WRITERS, WRITE_SECONDS)
        self.reading = _pool(url, 1, max(1, connections_max - WRITERS), READ_SECONDS)

    async def open(self) -> None:
        """Start connecting. Returns at once, whether or not the database is there."""
        await self.writing.open(wait=False)
        await self.reading.open(wait=False)

    async def close(self) -> None:
        await self.writing.close()
        await self.reading.close()

    @asynccontextmanager
    async def read(self) -> AsyncIterator[Connection]:
        """A connection for reading. Raises Unavailable if the database is away or too slow."""
        async with self._borrow(self.reading) as connection:
            yield connection

    @asynccontextmanager
    async def write(self) -> AsyncIterator[Connection]:
        """A connection for storing, in autocommit mode. Raises Unavailable if the database is away."""
        async with self._borrow(self.writing) as connection:
            yield connection

    @asynccontextmanager
    async def _borrow(self, pool: AsyncConnectionPool[Connection]) -> AsyncIterator[Connection]:
        try:
            async with pool.connection() as connection:
                yield connection
        except (PoolTimeout, psycopg.OperationalError, psycopg.InterfaceError) as error:
            raise Unavailable(AWAY) from error


def _pool(url: str, least: int, most: int, statement_seconds: int) -> AsyncConnectionPool[Connection]:
    return AsyncConnectionPool(
        url,
        connection_class=psycopg.AsyncConnection[tuple[Any, ...]],
        min_size=least,
        max_size=most,
        open=False,
        timeout=CONNECTION_WAIT_SECONDS,
        reconnect_timeout=RECONNECT_SECONDS,
        kwargs={
            "autocommit": True,
            "connect_timeout": CONNECT_SECONDS,
            "application_name": "temporality",
            "prepare_threshold": None,  # a pooler in transaction mode may stand between
            "options": f"-c statement_timeout={statement_seconds}s -c timezone=UTC",
        },
    )


def database_url(databases: Mapping[str, Any]) -> str:
    """The connection string of Django's `temporality` database, for what speaks to PostgreSQL by itself."""
    entry = databases["temporality"]
    names = {"NAME": "dbname", "USER": "user", "PASSWORD": "password", "HOST": "host", "PORT": "port"}
    given = {ours: str(entry[theirs]) for theirs, ours in names.items() if entry.get(theirs)}
    return psycopg.conninfo.make_conninfo("", **given)

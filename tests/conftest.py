"""How pytest-django meets the servers of `tests/servers.py`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import SyncToAsync
from django.core.management import CommandError

from kernel_project.devstack.process import Server

if TYPE_CHECKING:
    from tests.kernel import Carrier


@pytest.fixture(scope="session")
def django_db_modify_db_settings(postgres: Server, django_db_modify_db_settings_parallel_suffix: None) -> None:
    """The first test that needs a database starts PostgreSQL."""


@pytest.fixture(scope="session")
def django_db_keepdb() -> bool:
    """Nobody drops the test databases: the whole cluster goes, also when a thread still holds a connection."""
    return True


FLUSH_TRIES_MAX = 5  # of the tables between two tests
FLUSH_PAUSE_SECONDS = 1.0


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """A test that took the server away leaves dead connections behind; the next one must not inherit them."""
    close_dead_connections()
    SyncToAsync.single_thread_executor.submit(close_dead_connections)  # the thread that sync_to_async works on


def close_dead_connections() -> None:
    """Close this thread's connections whose server has gone."""
    from django.db import connections

    for connection in connections.all(initialized_only=True):
        if connection.connection is not None and not connection.in_atomic_block and not connection.is_usable():
            connection.close()


def flush_patiently(flush: Callable[[Any], None]) -> Callable[[Any], None]:
    """A call that finished late may still be writing when the tables are emptied: a deadlock is tried again."""

    def flush_again(case: Any) -> None:
        for _ in range(FLUSH_TRIES_MAX - 1):
            try:
                return flush(case)
            except CommandError as error:
                if "deadlock" not in f"{error.__cause__}":
                    raise
            time.sleep(FLUSH_PAUSE_SECONDS)
        return flush(case)

    return flush_again


def purging(flush: Callable[..., list[str]]) -> Callable[..., list[str]]:
    """The journal refuses to be emptied; between two tests it is purged."""

    def flush_with_purge(*arguments: Any, **options: Any) -> list[str]:
        statements = flush(*arguments, **options)
        return ["SET LOCAL kernel.purge = 'on'", *statements] if statements else []

    return flush_with_purge


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None) -> Iterator[None]:
    """Close the connection pools while the server still runs, so that no pool's thread tries to reconnect."""
    from django.db.backends.postgresql.operations import DatabaseOperations
    from django.test import TransactionTestCase

    operations, empty = DatabaseOperations, DatabaseOperations.sql_flush
    operations.sql_flush = purging(empty)  # type: ignore[method-assign]
    plain = TransactionTestCase._fixture_teardown  # type: ignore[attr-defined]
    TransactionTestCase._fixture_teardown = flush_patiently(plain)  # type: ignore[attr-defined]
    yield
    operations.sql_flush = empty  # type: ignore[method-assign]
    TransactionTestCase._fixture_teardown = plain  # type: ignore[attr-defined]
    from django.db import connections
    from django.db.backends.postgresql.base import DatabaseWrapper

    for alias in connections:
        connection = connections[alias]
        assert isinstance(connection, DatabaseWrapper)
        connection.close()
        connection.close_pool()  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def carrier(temporal_server: Server, django_db_setup: None) -> Iterator[Carrier]:
    """A worker that carries out the runs of a whole module."""
    from tests.kernel import Carrier

    with Carrier() as running:
        yield running

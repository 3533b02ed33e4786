"""How pytest-django meets the servers of `tests/servers.py`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from asgiref.sync import SyncToAsync
from hypothesis import HealthCheck, settings

from kernel_project.devstack.process import Server

if TYPE_CHECKING:
    from tests.kernel import Carrier

# How long an example takes says what else the machine does.
settings.register_profile("busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy machine")


@pytest.fixture(scope="session")
def django_db_modify_db_settings(postgres: Server, django_db_modify_db_settings_parallel_suffix: None) -> None:
    """The first test that needs a database starts PostgreSQL."""


@pytest.fixture(scope="session")
def django_db_keepdb() -> bool:
    """Nobody drops the test databases: the whole cluster goes, also when a thread still holds a connection."""
    return True


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


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None) -> Iterator[None]:
    """Empty tables in our way between tests; close the pools while the server runs, or they would reconnect."""
    from django.test import TransactionTestCase

    from tests.emptying import empty_patiently

    def between_tests(case: TransactionTestCase) -> None:
        for alias in case._databases_names(include_mirrors=False):  # type: ignore[attr-defined]
            empty_patiently(alias)

    plain = TransactionTestCase._fixture_teardown  # type: ignore[attr-defined]
    TransactionTestCase._fixture_teardown = between_tests  # type: ignore[attr-defined]
    yield
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

"""How pytest-django meets the servers of `tests/servers.py`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

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


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None) -> Iterator[None]:
    """Close the connection pools while the server still runs, so that no pool's thread tries to reconnect."""
    yield
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

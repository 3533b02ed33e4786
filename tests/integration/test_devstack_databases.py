"""The tests themselves run on PostgreSQL, each pytest process on its own."""

from __future__ import annotations

import os
import threading
from time import sleep

import psycopg
import pytest
from django.conf import settings
from django.db import OperationalError, connection, connections
from psycopg_pool import ConnectionPool, PoolTimeout

from kernel_project.devstack.layout import Layout
from kernel_project.devstack.postgres import Postgres


@pytest.mark.django_db(databases=["default", "temporality"])
def test_each_alias_has_its_own_test_database() -> None:
    names = []
    for alias in ("default", "temporality"):
        with connections[alias].cursor() as cursor:
            cursor.execute("SELECT current_database(), current_setting('fsync')")
            names.append(cursor.fetchone())
    suffix = f"_{worker}" if (worker := os.environ.get("PYTEST_XDIST_WORKER")) else ""
    assert names == [(f"test_kernel{suffix}", "off"), (f"test_temporality{suffix}", "off")]


def test_the_environment_points_at_the_private_folder(layout: Layout) -> None:
    assert os.environ["KERNEL_VAR"] == str(layout.var)
    assert os.environ["DATABASE_URL"] == layout.database_url("kernel")


@pytest.mark.django_db(transaction=True)
def test_the_pool_recovers_after_postgres_was_stopped(postgres: Postgres) -> None:
    def select() -> int:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
            return int(cursor.fetchone()[0])

    assert select() == 1
    with postgres.stopped(), pytest.raises(OperationalError):
        select()
    connection.close()
    assert select() == 1


@pytest.mark.django_db(transaction=True)
def test_a_restart_of_postgres_costs_no_borrower_a_wait_per_dead_connection(postgres: Postgres) -> None:
    """All idle connections of the pool died: the first that borrows must not meet them one by one, with pauses."""
    idle = settings.DATABASES["default"]["OPTIONS"]["pool"]["max_size"]
    together = threading.Barrier(idle)

    def use() -> None:
        with connections["default"].cursor() as cursor:
            cursor.execute("SELECT 1")
            together.wait(timeout=30)
        connections["default"].close()

    connection.close()
    threads = [threading.Thread(target=use) for _ in range(idle)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with postgres.stopped():
        pass
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
        assert cursor.fetchone() == (1,)


def test_a_long_outage_does_not_make_the_pool_wait_as_long_again(postgres: Postgres, layout: Layout) -> None:
    options = settings.DATABASES["default"]["OPTIONS"]["pool"] | {"timeout": 3}
    with ConnectionPool(layout.database_url("postgres"), open=True, **options) as pool:
        with pool.connection() as kept:
            kept.execute("SELECT 1")
        with postgres.stopped():
            for _ in range(2):
                with pytest.raises((psycopg.OperationalError, PoolTimeout)), pool.connection() as broken:
                    broken.execute("SELECT 1")
                sleep(4)  # the outage itself, long enough for a doubling back-off to be far out
        with pool.connection() as fresh:
            assert fresh.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.django_db(transaction=True)
def test_a_connection_left_open_by_a_thread_does_not_hinder_the_end(postgres: Postgres) -> None:
    """Green here and a clean end of the session: nobody waits for this connection."""

    def use() -> None:
        with connections["default"].cursor() as cursor:
            cursor.execute("SELECT 1")

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert postgres.terminate_backends("no_such_database") == 0

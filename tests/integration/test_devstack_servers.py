"""The embedded servers: they start, refuse what stands in their way with a sentence, and leave nothing behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psycopg
import pytest
import redis

from kernel_project.devstack.errors import AlreadyRunning, DevstackError, PortInUse
from kernel_project.devstack.layout import PROJECT_ROOT, Layout
from kernel_project.devstack.ports import private_layout
from kernel_project.devstack.postgres import Postgres
from kernel_project.devstack.process import Server, is_alive
from kernel_project.devstack.temporal import Temporal
from kernel_project.devstack.valkey import Valkey
from tests.processes import wait_until_gone


class Sleeper(Server):
    """A process with a child that ignores its parent's end."""

    name = "sleeper"
    grace_seconds = 2.0

    def command(self) -> Sequence[str]:
        return ["bash", "-c", "setsid sleep 1000 & trap '' TERM; echo up; while :; do sleep 1; done"]

    def is_ready(self) -> bool:
        return self.log_path.read_bytes().endswith(b"up\n")


@pytest.fixture
def place(tmp_path: Path) -> Layout:
    return private_layout(tmp_path / "var")


def test_postgres_is_utf8_reachable_by_socket_only_and_has_both_databases(postgres: Postgres) -> None:
    with postgres.connect("temporality") as connection:
        row = connection.execute(
            "SELECT current_setting('server_encoding'), current_setting('listen_addresses'), datlocale,"
            " (SELECT count(*) FROM pg_database WHERE datname IN ('kernel', 'temporality'))"
            " FROM pg_database WHERE datname = current_database()"
        ).fetchone()
    assert row == ("UTF8", "", "C.UTF-8", 2)
    assert postgres.layout.postgres_socket_dir.stat().st_mode & 0o077 == 0


def test_the_server_of_up_is_durable(place: Layout) -> None:
    with Postgres(place) as server, server.connect() as connection:
        row = connection.execute(
            "SELECT current_setting('fsync'), current_setting('full_page_writes'),"
            " current_setting('synchronous_commit')"
        ).fetchone()
    assert row == ("on", "on", "on")


def test_postgres_recovers_from_a_kill_and_keeps_what_was_committed(place: Layout) -> None:
    server = Postgres(place, durable=False).start()
    try:
        with server.connect("kernel") as connection:
            connection.execute("CREATE TABLE kept AS SELECT 1 AS one")
        server.kill()
        with pytest.raises(psycopg.OperationalError):
            server.connect("kernel")
        server.start()
        with server.connect("kernel") as connection:
            assert connection.execute("SELECT one FROM kept").fetchone() == (1,)
    finally:
        server.stop()


def test_terminate_backends_cuts_the_clients_of_one_database(postgres: Postgres) -> None:
    with postgres.connect("kernel") as cut, postgres.connect("temporality") as kept:
        assert postgres.terminate_backends("kernel") == 1
        with pytest.raises(psycopg.OperationalError):
            cut.execute("SELECT 1")
        assert kept.execute("SELECT 1").fetchone() == (1,)


def test_a_second_postgres_on_the_same_folder_is_refused_by_name(postgres: Postgres) -> None:
    with pytest.raises(AlreadyRunning, match=f"already in use by process {os.getpid()}.*KERNEL_VAR"):
        Postgres(postgres.layout).start()


def test_a_folder_with_foreign_files_is_not_touched(place: Layout) -> None:
    place.postgres_data.mkdir(parents=True)
    (place.postgres_data / "letter.txt").write_text("mine")
    with pytest.raises(DevstackError, match="holds files but no PostgreSQL cluster"):
        Postgres(place).start()
    assert (place.postgres_data / "letter.txt").read_text() == "mine"


def test_a_busy_port_names_its_holder_and_the_variable(place: Layout) -> None:
    with socket.create_server(("127.0.0.1", place.valkey_port)), pytest.raises(PortInUse) as refused:
        Valkey(place).start()
    assert f"(process {os.getpid()})" in str(refused.value)
    assert "KERNEL_VALKEY_PORT" in str(refused.value)


def test_valkey_answers(valkey: Valkey) -> None:
    with redis.Redis.from_url(valkey.layout.redis_url) as client:
        assert client.ping()


def test_temporal_keeps_its_namespaces_over_a_restart(place: Layout) -> None:
    with Temporal(place) as server:
        server.restart()
        assert server.is_ready()
        with pytest.raises(AlreadyRunning, match="Temporal's folder"):
            Temporal(place).start()


def test_a_server_that_ends_while_it_starts_says_so_with_its_log(place: Layout) -> None:
    class Broken(Sleeper):
        def command(self) -> Sequence[str]:
            return ["bash", "-c", "echo the disk is full; exit 3"]

    with pytest.raises(DevstackError, match=r"(?s)ended while it started \(code 3\).*the disk is full"):
        Broken(place).start()


def test_a_program_that_is_not_there_is_a_sentence(place: Layout) -> None:
    class Missing(Sleeper):
        def command(self) -> Sequence[str]:
            return ["/nowhere/program"]

    with pytest.raises(DevstackError, match="cannot start /nowhere/program: No such file"):
        Missing(place).start()


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_the_end_of_a_process_takes_its_descendants_along(place: Layout, how: str) -> None:
    server = Sleeper(place).start()
    getattr(server, how)()
    wait_until_gone(str(place.var), seconds_max=0)
    assert not server.alive()


def test_a_kill_of_the_keeper_alone_ends_its_process(place: Layout) -> None:
    with Valkey(place) as server:
        pid = server.pid or 0
        assert server._keeper is not None
        server._keeper.kill()
        wait_until_gone(str(place.var))
        assert not is_alive(pid)


OWNER = """
import sys, time
from pathlib import Path
from kernel_project.devstack.layout import Layout
from kernel_project.devstack.postgres import Postgres
from kernel_project.devstack.temporal import Temporal
from kernel_project.devstack.valkey import Valkey
layout = Layout.from_environment()
servers = [kind(layout).start() for kind in (Postgres, Valkey, Temporal)]
print("ready", flush=True)
time.sleep(100)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_servers_end_when_their_owner_is_killed(place: Layout, number: int) -> None:
    environment = {**os.environ, **place.environment(), "PYTHONPATH": str(PROJECT_ROOT)}
    with subprocess.Popen([sys.executable, "-c", OWNER], env=environment, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"ready\n"
        owner.send_signal(number)
    wait_until_gone(str(place.var))


def test_the_next_owner_waits_until_the_killed_one_is_cleared_away(place: Layout) -> None:
    environment = {**os.environ, **place.environment(), "PYTHONPATH": str(PROJECT_ROOT)}
    with subprocess.Popen([sys.executable, "-c", OWNER], env=environment, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        owner.stdout.readline()
        owner.kill()
    began = time.monotonic()
    with Postgres(place):
        assert time.monotonic() - began < 20

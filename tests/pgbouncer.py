"""PgBouncer in transaction mode before the tests' PostgreSQL. With `-p tests.pgbouncer` all goes through it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from django.db import connections
from django.db.backends.postgresql.base import DatabaseWrapper

from kernel_project.devstack.postgres import Postgres, unprivileged_user
from tests.temporality_server import free_port

START_SECONDS = 15.0
SERVERS_MAX = 4  # fewer server connections than clients: sessions are handed from one client to the next all the time


def binary() -> str:
    """Debian's program, which stands in /usr/sbin."""
    found = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
    assert found, "pgbouncer is not installed: apt-get install pgbouncer"
    return found


@contextlib.contextmanager
def pgbouncer(database_url: str) -> Iterator[int]:
    """A pooler in transaction mode that knows every database of that server; yields its port on the loopback."""
    with tempfile.TemporaryDirectory(prefix="pgbouncer-") as folder:
        Path(folder).chmod(0o755)
        port = free_port()
        settings = Path(folder) / "pgbouncer.ini"
        settings.write_text(_settings(database_url, port))
        user = ["-u", unprivileged_user()] if os.geteuid() == 0 else []
        with (Path(folder) / "log").open("wb") as log:
            process = subprocess.Popen([binary(), *user, str(settings)], stdout=log, stderr=subprocess.STDOUT)
        try:
            _wait(process, port, Path(folder) / "log")
            yield port
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()


def _settings(database_url: str, port: int) -> str:
    url = urlsplit(database_url)
    query = parse_qs(url.query)
    host = unquote(query.get("host", [url.hostname or "localhost"])[0])
    server_port = url.port or int(query.get("port", ["5432"])[0])
    return f"""
[databases]
* = host={host} port={server_port} user={url.username}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {SERVERS_MAX}
max_client_conn = 200
"""


def _wait(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)
    raise AssertionError(f"pgbouncer did not start: {log.read_text()}")


@contextlib.contextmanager
def connections_through(port: int) -> Iterator[None]:
    """All connections that this process makes to its database go through the pooler."""
    wrapper = connections["default"]
    assert isinstance(wrapper, DatabaseWrapper)
    direct = {name: wrapper.settings_dict[name] for name in ("HOST", "PORT", "OPTIONS")}
    options = direct["OPTIONS"] | {"prepare_threshold": None}  # what DATABASE_PREPARED_STATEMENTS=false does
    _redirect(wrapper, {"HOST": "127.0.0.1", "PORT": str(port), "OPTIONS": options})
    try:
        yield
    finally:
        _redirect(wrapper, direct)


def _redirect(wrapper: DatabaseWrapper, where: dict[str, Any]) -> None:
    wrapper.close()
    wrapper.close_pool()  # type: ignore[attr-defined]
    wrapper.settings_dict.update(where)


@pytest.fixture(scope="session", autouse=True)
def everything_goes_through_pgbouncer(postgres: Postgres, django_db_setup: None) -> Iterator[None]:
    with pgbouncer(postgres.url()) as port, connections_through(port):
        yield

